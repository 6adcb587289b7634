#!/usr/bin/env bash
# Streams a chat answer with curl, as server-sent events.
set -euo pipefail

curl --no-progress-meter --fail-with-body --no-buffer http://localhost:8000/v1/chat/completions \
  -H 'content-type: application/json' -d '{
    "model": "inflight-demo",
    "messages": [{"role": "user", "content": "What is machine learning?"}],
    "stream": true
  }'
