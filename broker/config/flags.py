"""nats-server's command line: Go-style flags that override the configuration file.

Owns: the flags, their aliases, and what each one sets.
May not touch: files, processes; commands such as --version are returned, not executed.
Spec: nats-server --help. `-f v`, `--f v`, `-f=v`, `--f=v` are equal; booleans take no value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from broker.config.draft import BadOptions, Draft
from broker.config.file.values import BadValue, parse_duration, route_address

USAGE = """\
Usage: jetraft serve [options]

Server Options:
    -a, --addr, --net <host>         Bind to host address (default: 0.0.0.0)
    -p, --port <port>                Use port for clients, -1 for a random one (default: 4222)
    -n, --name, --server_name <name> Server name (default: the server id)
    -P, --pid <file>                 File to store the process id
    -m, --http_port <port>           Use port for http monitoring
    -ms, --https_port <port>         Use port for https monitoring
    -c, --config <file>              Configuration file
    -t                               Test the configuration and exit
        --watch <duration>           Reload when the configuration, a file that it includes or
                                     a certificate changes; looks this often, such as 10s
    -sl, --signal <signal>[=<pid>]   Signal a server: ldm stop quit term reopen reload
        --client_advertise <string>  Client address to advertise to other servers
        --ports_file_dir <dir>       Creates a ports file in the specified directory

Logging Options:
    -l, --log <file>                 File to redirect log output
    -T, --logtime                    Timestamp log entries (default: true)
        --logtime_utc                Use UTC in timestamps
        --log_size_limit <bytes>     Rotate the log file at this size
    -D, --debug                      Enable debugging output
    -V, --trace                      Trace the raw protocol
    -DV                              Debug and trace
        --max_traced_msg_len <len>   Maximum printable length of traced messages

JetStream Options:
    -js, --jetstream                 Enable JetStream
    -sd, --store_dir <dir>           Set the storage directory

Authorization Options:
        --user <user>                User required for connections
        --pass <password>            Password required for connections
        --auth <token>               Authorization token required for connections

TLS Options:
        --tls                        Enable TLS, do not verify clients
        --tlscert <file>             Server certificate file
        --tlskey <file>              Private key for the server certificate
        --tlsverify                  Enable TLS, verify client certificates
        --tlscacert <file>           Client certificate CA for verification

Cluster Options:
        --routes <rurl-1, rurl-2>    Routes to solicit and connect
        --cluster <cluster-url>      Cluster URL for solicited routes
        --cluster_name <string>      Cluster name
        --cluster_advertise <string> Cluster URL to advertise to other servers
        --no_advertise               Do not advertise known addresses to clients
        --connect_retries <number>   For implicit routes, number of connect retries

Common Options:
    -h, --help                       Show this message
    -v, --version                    Show version
"""


class UsageError(Exception):
    """Invalid arguments; str() names them. The caller prints the usage."""


@dataclass(slots=True)
class CommandLine:
    """The parsed command line: settings for the draft, and at most one command."""

    settings: list[Callable[[Draft], None]] = field(default_factory=list)
    config_file: str = ""
    command: str = ""  # "", help, version, check or signal
    argument: str = ""
    watch_ns: int = 0  # how often the files are compared; 0 = never

    def apply(self, draft: Draft) -> None:
        for setting in self.settings:
            setting(draft)


def parse_flags(argv: Sequence[str]) -> CommandLine:
    """Raises UsageError, BadOptions."""
    line = CommandLine()
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            return _command_word(line, word)
        if word == "--":
            break
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name in _SWITCHES:
            _switch(line, name, _truth(name, value) if equals else True)
        elif name in _WITH_VALUE:
            if not equals:
                if not words:
                    raise UsageError(f"flag needs an argument: -{name}")
                value = words.pop(0)
            _valued(line, name, value)
        else:
            raise UsageError(f"flag provided but not defined: -{name}")
    return line


def _command_word(line: CommandLine, word: str) -> CommandLine:
    if word.lower() in ("help", "version"):
        line.command = word.lower()
        return line
    raise BadOptions(f'unrecognized command: "{word}"')


def _truth(name: str, value: str) -> bool:
    if value.lower() in ("1", "t", "true"):
        return True
    if value.lower() in ("0", "f", "false"):
        return False
    raise UsageError(f'invalid boolean value "{value}" for -{name}: parse error')


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise UsageError(f'invalid value "{value}" for flag -{name}: parse error') from error


def _interval(name: str, value: str) -> int:
    try:
        found = parse_duration(value)
    except BadValue:
        found = 0
    if found <= 0:
        raise UsageError(f'invalid value "{value}" for flag -{name}: want a duration such as 10s')
    return found


def _switch(line: CommandLine, name: str, on: bool) -> None:  # noqa: FBT001
    canonical = _SWITCHES[name]
    if canonical in ("help", "version", "check"):
        if on:
            line.command = canonical
        return
    if canonical in _REFUSED:
        raise BadOptions(f'not supported yet: "{canonical}"')
    line.settings.append(lambda draft: _set_switch(draft, canonical, on))


def _set_switch(draft: Draft, name: str, on: bool) -> None:  # noqa: FBT001
    if name == "jetstream":
        draft.jetstream = (draft.jetstream or {}) if on else None
    elif name in ("tls", "tlsverify"):
        if on:
            draft.tls = {**(draft.tls or {}), **({"verify": True} if name == "tlsverify" else {})}
    elif name == "no_advertise":
        draft.cluster = {**(draft.cluster or {}), "no_advertise": on}
    elif name == "debug_trace":
        draft.logging.update(debug=on, trace=on)
    elif name in ("trace_verbose", "debug_trace_verbose"):
        draft.logging.update(trace=on, trace_verbose=on)
        if name == "debug_trace_verbose":
            draft.logging["debug"] = on
    else:
        draft.logging[name] = on


def _valued(line: CommandLine, name: str, value: str) -> None:
    canonical = _WITH_VALUE[name]
    if canonical == "config":
        line.config_file = value
        return
    if canonical == "watch":
        line.watch_ns = _interval(name, value)
        return
    if canonical == "signal":
        line.command, line.argument = "signal", value
        return
    if canonical in _REFUSED:
        raise BadOptions(f'not supported yet: "{canonical}"')
    number = _number(name, value) if canonical in _NUMBERS else 0
    line.settings.append(lambda draft: _set_value(draft, canonical, value, number))


def _set_value(draft: Draft, name: str, value: str, number: int) -> None:
    if name in ("host", "server_name", "pid_file", "client_advertise", "ports_file_dir"):
        draft.top[name] = value
    elif name == "port":
        draft.top["port"] = number
    elif name in ("http_port", "https_port"):
        # A listener given by flag binds to the client host, whatever the file says.
        draft.http.update(host="", port=number, tls=name == "https_port")
    elif name == "log_file":
        draft.logging["log_file"] = value
    elif name in ("size_limit", "max_traced_msg_len"):
        draft.logging[name] = number
    elif name == "store_dir":
        draft.store_dir = value
        if draft.jetstream is not None:
            draft.jetstream.pop("store_dir", None)
    elif name in ("user", "password", "token"):
        _credential(draft, name, value)
    elif name in ("cert_file", "key_file", "ca_file"):
        draft.tls = {**(draft.tls or {}), name: value}
    else:
        _set_cluster(draft, name, value, number)


def _credential(draft: Draft, name: str, value: str) -> None:
    """Credentials on the command line replace the file's."""
    for other in ("users", "default_permissions", "no_auth_user"):
        draft.authorization.pop(other, None)
    if name == "token":
        draft.authorization.pop("user", None)
        draft.authorization.pop("password", None)
    else:
        draft.authorization.pop("token", None)
    draft.authorization[name] = value


def _set_cluster(draft: Draft, name: str, value: str, number: int) -> None:
    cluster = draft.cluster = dict(draft.cluster or {})
    if name == "routes":
        cluster["routes"] = tuple(url.strip() for url in value.split(",") if url.strip())
        for url in cluster["routes"]:
            _route(url)
    elif name == "cluster":
        cluster.update(cluster_url(value))
    elif name == "connect_retries":
        return  # any number is fine: routes are dialed forever
    else:
        cluster[name] = value


def _route(url: str) -> None:
    try:
        route_address(url)
    except BadValue as error:
        raise BadOptions(str(error)) from error


def cluster_url(text: str) -> dict[str, object]:
    """`nats://[user:pass@]host:port`, port -1 allowed. Raises BadOptions."""
    rest = text.partition("://")[2] or text
    login, at, place = rest.rpartition("@")
    host, colon, port = place.rstrip("/").rpartition(":")
    if not colon:
        raise BadOptions(f'could not parse address string "{text}"')
    try:
        settings: dict[str, object] = {"host": host.strip("[]"), "port": int(port)}
    except ValueError as error:
        raise BadOptions(f'could not parse port "{port}"') from error
    if at:
        user, _, password = login.partition(":")
        settings.update(user=unquote(user), password=unquote(password))
    return settings


_SWITCHES = {
    "h": "help",
    "help": "help",
    "help_tls": "help",
    "v": "version",
    "version": "version",
    "t": "check",
    "T": "logtime",
    "logtime": "logtime",
    "logtime_utc": "logtime_utc",
    "D": "debug",
    "debug": "debug",
    "V": "trace",
    "trace": "trace",
    "VV": "trace_verbose",
    "DV": "debug_trace",
    "DVV": "debug_trace_verbose",
    "js": "jetstream",
    "jetstream": "jetstream",
    "tls": "tls",
    "tlsverify": "tlsverify",
    "no_advertise": "no_advertise",
    "s": "syslog",
    "syslog": "syslog",
}
_WITH_VALUE = {
    "a": "host",
    "addr": "host",
    "net": "host",
    "p": "port",
    "port": "port",
    "n": "server_name",
    "name": "server_name",
    "server_name": "server_name",
    "P": "pid_file",
    "pid": "pid_file",
    "m": "http_port",
    "http_port": "http_port",
    "ms": "https_port",
    "https_port": "https_port",
    "c": "config",
    "config": "config",
    "watch": "watch",
    "sl": "signal",
    "signal": "signal",
    "client_advertise": "client_advertise",
    "ports_file_dir": "ports_file_dir",
    "l": "log_file",
    "log": "log_file",
    "log_size_limit": "size_limit",
    "max_traced_msg_len": "max_traced_msg_len",
    "sd": "store_dir",
    "store_dir": "store_dir",
    "user": "user",
    "pass": "password",
    "auth": "token",
    "tlscert": "cert_file",
    "tlskey": "key_file",
    "tlscacert": "ca_file",
    "routes": "routes",
    "cluster": "cluster",
    "cluster_listen": "cluster",
    "cluster_name": "name",
    "cluster_advertise": "advertise",
    "connect_retries": "connect_retries",
    "r": "remote_syslog",
    "remote_syslog": "remote_syslog",
    "profile": "profile",
}
_NUMBERS = frozenset(
    ["port", "http_port", "https_port", "size_limit", "max_traced_msg_len", "connect_retries"]
)
_REFUSED = frozenset(["profile"])
