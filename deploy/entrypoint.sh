#!/bin/sh
# What `docker run IMAGE ...` does:
#   nothing, or flags of nats-server (-js, -c FILE ...)   one server
#   a command of jetraft (stream ls, bench ...)            that command
#   sh, bash or python                                     that program
set -eu

case "${1:-}" in
  "") set -- serve --jetstream --http_port 8222 ;;
  -*) set -- serve "$@" ;;
  sh | bash | python | python3) exec "$@" ;;
esac

if [ "$1" = serve ]; then
  place=yes # where streams are stored, unless the flags or the file say it
  for word in "$@"; do
    case "$word" in
      -sd | -sd=* | --sd | --sd=* | -store_dir | -store_dir=* | --store_dir | --store_dir=*) place=no ;;
      -c | -c=* | --c | --c=* | -config | -config=* | --config | --config=*) place=no ;;
      -h | --help | -help | help | -v | --version | -version | -sl | -sl=* | --signal | --signal=*) place=no ;;
    esac
  done
  if [ "$place" = yes ]; then
    set -- "$@" --store_dir "${JETRAFT_STORE_DIR:-/data}"
  fi
fi
exec jetraft "$@"
