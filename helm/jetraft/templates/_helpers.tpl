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
{{- $image := printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- with .Values.image.digest }}{{ $image = printf "%s@%s" $image . }}{{ end -}}
{{- $image -}}
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

{{/* A quantity of the configuration file, such as 1MB: the file wants it without quotes. */}}
{{- define "jetraft.bare" -}}
{{- printf "<< %v >>" . -}}
{{- end -}}

{{- define "jetraft.operatorMode" -}}
{{- if .Values.auth.operator.jwt }}yes{{ end -}}
{{- end -}}

{{- define "jetraft.tlsBlock" -}}
cert_file: /etc/jetraft-tls/tls.crt
key_file: /etc/jetraft-tls/tls.key
ca_file: /etc/jetraft-tls/ca.crt
{{- end -}}

{{/* Who may log in: keys of the configuration. The system user is always there: the commands of
`jetraft cluster` need it. With no users but its own, clients need no login. */}}
{{- define "jetraft.loginSettings" -}}
{{- with .Values.auth -}}
{{- if .operator.jwt }}
operator: {{ .operator.jwt | quote }}
system_account: {{ .operator.systemAccount | quote }}
{{- if eq .operator.resolver "full" }}
resolver: {type: full, dir: /data/jwt}
{{- else if eq .operator.resolver "memory" }}
resolver: MEMORY
{{- else }}
resolver: {{ .operator.resolver | quote }}
{{- end }}
{{- with .operator.preload }}
resolver_preload: {{ toJson . }}
{{- end }}
{{- else }}
system_account: SYS
accounts:
  SYS:
    users:
      - user: "<< $JETRAFT_SYSTEM_USER >>"
        password: "<< $JETRAFT_SYSTEM_PASSWORD >>"
  {{- with .accounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if or .enabled .users }}
authorization:
  users:
    {{- if .enabled }}
    - user: "<< $JETRAFT_CLIENT_USER >>"
      password: "<< $JETRAFT_CLIENT_PASSWORD >>"
    {{- end }}
    {{- with .users }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The settings as YAML, before config.extra is merged into them. `routes` is an argument: the
checksum that restarts the pods leaves them out, because a cluster that grows must not restart the
nodes it has. */}}
{{- define "jetraft.settings" -}}
{{- include "jetraft.check" .root -}}
{{- $root := .root -}}
{{- with .root.Values -}}
server_name: "<< $POD_NAME >>"
port: 4222
client_advertise: "<< $CLIENT_ADVERTISE >>"
http: "0.0.0.0:8222"
pid_file: /run/jetraft/jetraft.pid
max_payload: {{ include "jetraft.bare" .server.maxPayload | quote }}
max_pending: {{ include "jetraft.bare" .server.maxPending | quote }}
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
{{- if ne .topologySpread.zoneTag "off" }}
server_tags: ["<< $JETRAFT_ZONE >>"]
{{- end }}
jetstream:
  store_dir: /data
  max_memory_store: {{ include "jetraft.bare" .jetstream.maxMemoryStore | quote }}
  max_file_store: {{ include "jetraft.bare" .jetstream.maxFileStore | quote }}
  {{- with .jetstream.syncInterval }}
  sync_interval: {{ . | quote }}
  {{- end }}
  {{- if eq .topologySpread.zoneTag "unique" }}
  unique_tag: "az:"
  {{- end }}
  {{- with .jetstream.domain }}
  domain: {{ . | quote }}
  {{- end }}
  {{- if .jetstream.encryption.existingSecret }}
  key: "<< $JETRAFT_STORE_KEY >>"
  cipher: {{ .jetstream.encryption.cipher }}
  {{- end }}
  {{- with .jetstream.remotes }}
  remotes:
    {{- range . }}
    {{ .name }}:
      urls: {{ .urls | toJson }}
      {{- with .domain }}
      domain: {{ . | quote }}
      {{- end }}
      {{- if .existingSecret }}
      user: "<< ${{ include "jetraft.remotePrefix" .name }}_USER >>"
      password: "<< ${{ include "jetraft.remotePrefix" .name }}_PASSWORD >>"
      {{- end }}
      {{- if .credsSecret }}
      creds: /etc/jetraft-remotes/{{ .name }}/user.creds
      {{- end }}
      {{- if .tls }}
      tls:
        {{- include "jetraft.tlsBlock" $root | nindent 8 }}
      {{- end }}
    {{- end }}
  {{- end }}
{{ include "jetraft.loginSettings" $root }}
{{- if .tls.enabled }}
tls:
  {{- include "jetraft.tlsBlock" $root | nindent 2 }}
  {{- if .tls.verify }}
  verify: true
  {{- end }}
{{- end }}
{{- if .websocket.enabled }}
websocket:
  port: 8080
  {{- if .websocket.tls }}
  tls:
    {{- include "jetraft.tlsBlock" $root | nindent 4 }}
  {{- else }}
  no_tls: true
  {{- end }}
{{- end }}
{{- if gt (int .replicas) 1 }}
cluster:
  name: {{ default (include "jetraft.fullname" $root) .cluster.name | quote }}
  listen: "0.0.0.0:6222"
  advertise: "<< $ROUTE_ADVERTISE >>"
  {{- if .auth.enabled }}
  authorization:
    user: route
    password: "<< $JETRAFT_ROUTE_PASSWORD >>"
  {{- end }}
  {{- if and .tls.enabled .tls.routes }}
  tls:
    {{- include "jetraft.tlsBlock" $root | nindent 4 }}
    verify: true
  {{- end }}
  {{- with $.routes }}
  routes: {{ toJson . }}
  {{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* One value of the file. `<< x >>` stands for x without quotes: a variable or a size. */}}
{{- define "jetraft.value" -}}
{{- $text := . | toPrettyJson | replace "\\u003c" "<" | replace "\\u003e" ">" | replace "\\u0026" "&" -}}
{{- regexReplaceAll "\"<<\\s*([^\"]*?)\\s*>>\"" $text "${1}" -}}
{{- end -}}

{{/* The configuration file: the settings with config.extra on top of them, a key per line. */}}
{{- define "jetraft.config" -}}
{{- $merged := mergeOverwrite (include "jetraft.settings" . | fromYaml) (deepCopy .root.Values.config.extra) -}}
{{- if hasKey $merged "Error" }}{{ fail (get $merged "Error") }}{{ end -}}
{{- range $key, $value := $merged -}}
{{- if and (eq $key "accounts") $.root.Values.auth.accountsSecret }}
accounts: {
  include "../jetraft-secret-accounts/accounts.conf"
{{- range $name, $account := $value }}
  {{ $name | quote }}: {{ include "jetraft.value" $account | indent 2 | trim }}
{{- end }}
}
{{- else }}
{{ $key }}: {{ include "jetraft.value" $value }}
{{- end }}
{{- end }}
{{- if .root.Values.config.secret }}
include "../jetraft-secret-config/extra.conf"
{{- end }}
{{- end -}}

{{/* What a running node cannot take over: only a change of this restarts the pods. The keys left
out are those that a reload applies (broker/server/process/reload.py). */}}
{{- define "jetraft.fixedSettings" -}}
{{- $settings := mergeOverwrite (include "jetraft.settings" (dict "root" . "routes" list) | fromYaml) (deepCopy .Values.config.extra) -}}
{{- if .Values.config.reloadInterval -}}
{{- $settings = omit $settings "accounts" "authorization" "no_auth_user" "mappings" "resolver_preload" "server_metadata" "server_tags" "debug" "trace" "trace_verbose" "max_traced_msg_len" "lame_duck_duration" "lame_duck_grace_period" "max_payload" "max_control_line" "max_pending" "max_connections" "max_subscriptions" "max_sub_tokens" "write_deadline" "ping_interval" "ping_max" -}}
{{- $_ := set $settings "jetstream" (omit $settings.jetstream "limits" "max_memory_store" "max_file_store" "remotes") -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{/* How a pod of ours that is a client finds the cluster and logs in. `role` is client or system. */}}
{{- define "jetraft.clientEnv" -}}
{{- $root := .root -}}
{{- $scheme := ternary "tls" "nats" $root.Values.tls.enabled -}}
- name: NATS_URL
  value: "{{ $scheme }}://{{ include "jetraft.fullname" $root }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}:{{ int $root.Values.service.port }}"
{{- if include "jetraft.operatorMode" $root }}
- name: NATS_CREDS
  value: /etc/jetraft-creds/{{ ternary "system" "user" (eq .role "system") }}.creds
{{- else if eq .role "system" }}
- name: NATS_USER
  valueFrom:
    secretKeyRef: {name: {{ include "jetraft.secret" $root }}, key: system-user}
- name: NATS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "jetraft.secret" $root }}, key: system-password}
{{- else if $root.Values.auth.enabled }}
- name: NATS_USER
  valueFrom:
    secretKeyRef: {name: {{ include "jetraft.secret" $root }}, key: user}
- name: NATS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "jetraft.secret" $root }}, key: password}
{{- end }}
{{- if $root.Values.tls.enabled }}
- {name: NATS_CA, value: /etc/jetraft-tls/ca.crt}
{{- if $root.Values.tls.verify }}
- {name: NATS_CERT, value: /etc/jetraft-tls/tls.crt}
- {name: NATS_KEY, value: /etc/jetraft-tls/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{- define "jetraft.clientMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/jetraft-tls, readOnly: true}
{{- end }}
{{- if include "jetraft.operatorMode" . }}
- {name: creds, mountPath: /etc/jetraft-creds, readOnly: true}
{{- end }}
{{- end -}}

{{- define "jetraft.clientVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName }}
    defaultMode: 0440
{{- end }}
{{- if include "jetraft.operatorMode" . }}
- name: creds
  secret:
    secretName: {{ .Values.auth.operator.credsSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* The part of a pod that is the same for all pods that are clients. */}}
{{- define "jetraft.clientPod" -}}
{{- include "jetraft.check" . -}}
serviceAccountName: {{ include "jetraft.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "jetraft.podSecurity" . | nindent 2 }}
{{- end -}}

{{- define "jetraft.clientLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Faults of the values that the schema cannot say in one line. */}}
{{- define "jetraft.check" -}}
{{- with .Values }}
{{- if and .tls.enabled (not .tls.secretName) }}
{{- fail "tls.enabled needs tls.secretName: a Secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if and .websocket.enabled .websocket.tls (not .tls.enabled) }}
{{- fail "websocket.tls needs tls.enabled and tls.secretName" }}
{{- end }}
{{- if and .websocket.ingress.enabled (not .websocket.enabled) }}
{{- fail "websocket.ingress needs websocket.enabled" }}
{{- end }}
{{- if and .websocket.ingress.enabled (not .websocket.ingress.host) }}
{{- fail "websocket.ingress needs websocket.ingress.host" }}
{{- end }}
{{- if and .auth.operator.jwt (not .auth.enabled) }}
{{- fail "auth.operator needs auth.enabled" }}
{{- end }}
{{- if and .auth.operator.jwt (not .auth.operator.systemAccount) }}
{{- fail "auth.operator needs auth.operator.systemAccount: the public key of the system account" }}
{{- end }}
{{- if and .auth.operator.jwt (not .auth.operator.credsSecret) }}
{{- fail "auth.operator needs auth.operator.credsSecret: a Secret with user.creds and system.creds, for the pods of the chart that are clients" }}
{{- end }}
{{- if and .auth.operator.jwt (or .auth.accounts .auth.users .auth.accountsSecret) }}
{{- fail "auth.operator and auth.accounts, auth.users or auth.accountsSecret exclude each other" }}
{{- end }}
{{- $open := printf "%s %s %s" (toJson .config.extra) (toJson .auth.accounts) (toJson .auth.users) | replace "\\u003c" "<" }}
{{- with regexFind "\"(pass|password|token|ek|key|encryption_key|prev_key)\":\"[^$<]" $open }}
{{- fail (printf "%s... would be readable in a ConfigMap: write << $NAME >> and define NAME in extraEnv from a Secret, or use config.secret" (trunc 20 .)) }}
{{- end }}
{{- end }}
{{- end -}}
