#!/usr/bin/env bash
# Serves one model from two workers behind a gateway on http://localhost:8000. Ctrl-C stops all three.
set -euo pipefail
trap 'kill $(jobs -p); wait' EXIT

inflight worker --grpc-port 8101 --metrics-port 8102 &
inflight worker --grpc-port 8201 --metrics-port 8202 &
inflight gateway --port 8000 --worker localhost:8101 --worker localhost:8201
