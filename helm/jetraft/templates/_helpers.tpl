{{/* Base name of all objects. 40 characters leave room for "-headless" and the ordinals. */}}
{{- define "jetraft.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "jetraft.headless" -}}
{{- printf "%s-headless" (include "jetraft.fullname" .) -}}
{{- end -}}

{{/* What follows the pod's name in its DNS name: it stays when the pod gets another address. */}}
{{- define "jetraft.domain" -}}
{{- printf "%s.%s.svc.%s" (include "jetraft.headless" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- define "jetraft.secret" -}}
{{- default (printf "%s-auth" (include "jetraft.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "jetraft.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "jetraft.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "jetraft.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* Labels that never change over upgrades: selectors use them. */}}
{{- define "jetraft.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- end -}}

{{- define "jetraft.labels" -}}
{{ include "jetraft.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "jetraft.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "jetraft.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* A login from a Secret. Kubernetes expands $(X) in later variables: the quotes it adds keep a
password such as "0123" or "a b" one string when the configuration file refers to it. */}}
{{- define "jetraft.loginEnv" -}}
{{- range $role, $key := .keys }}
- name: {{ $.prefix }}_{{ $role }}_RAW
  valueFrom:
    secretKeyRef:
      name: {{ $.secret }}
      key: {{ $key }}
- name: {{ $.prefix }}_{{ $role }}
  value: "'$({{ $.prefix }}_{{ $role }}_RAW)'"
{{- end }}
{{- end -}}

{{- define "jetraft.remotePrefix" -}}
{{- printf "JETRAFT_REMOTE_%s" (. | upper | replace "-" "_") -}}
{{- end -}}

{{- define "jetraft.tlsBlock" -}}
tls {
  cert_file: "/etc/jetraft-tls/tls.crt"
  key_file: "/etc/jetraft-tls/tls.key"
  ca_file: "/etc/jetraft-tls/ca.crt"
{{- if .verify }}
  verify: true
{{- end }}
}
{{- end -}}

{{/* The configuration file. `routes` is an argument, because the checksum that restarts the pods
leaves them out: a cluster that grows must not restart the nodes it has. */}}
{{- define "jetraft.config" -}}
{{- $root := .root -}}
{{- with .root.Values -}}
server_name: $POD_NAME
port: 4222
client_advertise: $CLIENT_ADVERTISE
http: "0.0.0.0:8222"
pid_file: "/run/jetraft/jetraft.pid"
max_payload: {{ .server.maxPayload }}
max_pending: {{ .server.maxPending }}
max_connections: {{ int .server.maxConnections }}
ping_interval: {{ .server.pingInterval | quote }}
ping_max: {{ int .server.pingMax }}
lame_duck_duration: "{{ int .lameDuck.durationSeconds }}s"
lame_duck_grace_period: "{{ int .lameDuck.graceSeconds }}s"
{{- if .server.debug }}
debug: true
{{- end }}
{{- if .server.trace }}
trace: true
{{- end }}
jetstream {
  store_dir: "/data"
  max_memory_store: {{ .jetstream.maxMemoryStore }}
  max_file_store: {{ .jetstream.maxFileStore }}
{{- if .jetstream.domain }}
  domain: {{ .jetstream.domain | quote }}
{{- end }}
{{- if .jetstream.remotes }}
  remotes {
{{- range .jetstream.remotes }}
    {{ .name | quote }} {
      urls: {{ .urls | toJson }}
{{- if .domain }}
      domain: {{ .domain | quote }}
{{- end }}
{{- if .existingSecret }}
      user: ${{ include "jetraft.remotePrefix" .name }}_USER
      password: ${{ include "jetraft.remotePrefix" .name }}_PASSWORD
{{- end }}
    }
{{- end }}
  }
{{- end }}
}
{{- if .auth.enabled }}
authorization {
  user: $JETRAFT_CLIENT_USER
  password: $JETRAFT_CLIENT_PASSWORD
}
{{- end }}
{{- if .tls.enabled }}
{{ include "jetraft.tlsBlock" (dict "verify" .tls.verify) }}
{{- end }}
{{- if gt (int .replicas) 1 }}
cluster {
  name: {{ default (include "jetraft.fullname" $root) .cluster.name | quote }}
  listen: "0.0.0.0:6222"
  advertise: $ROUTE_ADVERTISE
{{- if .auth.enabled }}
  authorization {
    user: "route"
    password: $JETRAFT_ROUTE_PASSWORD
  }
{{- end }}
{{- if and .tls.enabled .tls.routes }}
{{ include "jetraft.tlsBlock" (dict "verify" true) | indent 2 }}
{{- end }}
  routes: [
{{- range $.routes }}
    {{ . | quote }}
{{- end }}
  ]
}
{{- end }}
{{- end -}}
{{- end -}}
