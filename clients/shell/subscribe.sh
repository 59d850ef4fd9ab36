#!/usr/bin/env bash
# Print the captions of a running streamd: subscribe.sh [ws://HOST:PORT [SESSION]].
#
# Finals go to stdout as JSON, one per line: pipe them into jq -r .text for the text alone. After a
# lost connection it reconnects, and no final is lost or repeated. The token comes from
# STREAMD_TOKEN. Needs bash, od and head; no TLS. docs/protocol.md describes all messages.
set -u
export LC_ALL=C # lengths are bytes

url=${1:-ws://127.0.0.1:8765} session=${2:-live} after='' epoch='' over=''
case $url in ws://*) ;; *) echo 'subscribe.sh [ws://HOST:PORT [SESSION]]' >&2 && exit 1 ;; esac
address=${url#ws://} host=${address%:*} port=${address##*:}

number() { # read a big-endian number of $1 bytes from the server
  local byte value=0
  for byte in $(head -c "$1" <&3 | od -An -v -tu1 -w1); do value=$((value * 256 + byte)); done
  echo "$value"
}

handshake() { # open the websocket; sets $status
  local query="session=$session&partials=0&words=0${after:+&after=$after}${epoch:+&epoch=$epoch}"
  printf '%s\r\n' "GET /v1/stream?$query HTTP/1.1" "Host: $address" 'Upgrade: websocket' \
    'Connection: Upgrade' 'Sec-WebSocket-Version: 13' 'Sec-WebSocket-Key: c3RyZWFtZCBzdWJzY3JpYg==' \
    ${STREAMD_TOKEN:+"Authorization: Bearer $STREAMD_TOKEN"} '' >&3
  local line
  read -r _ status _ <&3 || return 1
  while read -r line <&3 && [ "$line" != $'\r' ]; do :; done
}

take() { # handle one message
  case $1 in
    '{"type":"hello"'*)
      [[ $1 =~ \"epoch\":\"([^\"]*)\" ]]
      [ -n "$epoch" ] && [ "$epoch" != "${BASH_REMATCH[1]}" ] && after=0 # a new run counts from 1
      epoch=${BASH_REMATCH[1]}
      [[ $1 =~ \"seq\":([0-9]+) ]]
      after=${after:-${BASH_REMATCH[1]}}
      ;;
    '{"type":"final"'*)
      printf '%s\n' "$1"
      [[ $1 =~ \"seq\":([0-9]+) ]]
      after=${BASH_REMATCH[1]}
      ;;
    '{"type":"error"'*'"fatal":true'*)
      [[ $1 == *'"code":"slow"'* ]] || { printf '%s\n' "$1" >&2 && over=1; }
      ;;
    '{"type":"eos"'*) over=${over:-0} ;;
  esac
}

follow() { # one connection, to its end
  handshake || return
  if [ "$status" != 101 ]; then
    local why=
    read -r -t 5 why <&3
    echo "$url: ${why:-HTTP $status}" >&2
    [ "$status" -lt 500 ] && over=1
    return
  fi
  local opcode length payload
  while opcode=$(number 1) && [ "$opcode" -gt 0 ]; do
    length=$(number 1)
    [ "$length" = 126 ] && length=$(number 2)
    [ "$length" = 127 ] && length=$(number 8)
    case $((opcode & 15)) in
      1) payload=$(head -c "$length" <&3) && take "$payload" ;;
      9) # ping: answer with the same bytes, under a mask of zeros
        { printf "\\x8a\\x$(printf %x $((128 + length)))\\0\\0\\0\\0" && head -c "$length" <&3; } >&3
        ;;
      *) return ;; # close
    esac
  done
}

while [ -z "$over" ]; do
  if { exec 3<>"/dev/tcp/$host/$port"; } 2>/dev/null; then
    follow
    exec 3>&-
  else
    echo "$url: no connection" >&2
  fi
  [ -n "$over" ] || sleep 0.5
done
exit "$over"
