{{- /* A worker's pod: a replica ("single"), or one of a group over several machines, whose "leader" has rank 0 and
whose "follower"s have no port. */ -}}

{{- /* What starts the ranks. Reference: torchrun on every pod; its ranks meet at the leader. TensorRT-LLM: mpirun on the
leader, which reaches the followers by ssh as the same account. */ -}}
{{- define "inflight.command" -}}
{{- $model := .model }}
{{- $ranks := mul $model.tensorParallelSize $model.pipelineParallelSize | int }}
{{- $each := div $ranks $model.nodes }}
{{- if eq .role "single" -}}
command:
  {{- if gt $ranks 1 }}
  - mpirun
  - -n
  - {{ $ranks | quote }}
  - --bind-to
  - none
  {{- end }}
  - inflight
{{- else if eq $model.executor "tensorrt_llm" -}}
command:
  - sh
  - -c
  {{- if eq .role "leader" }}
  - |
    set -eu
    ssh="-p 2222 -i /etc/inflight-ssh/id_ed25519 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    first=${LWS_LEADER_ADDRESS%%.*} rest=${LWS_LEADER_ADDRESS#*.} number=1
    echo "$LWS_LEADER_ADDRESS slots={{ $each }}" > /tmp/hosts
    while [ "$number" -lt {{ $model.nodes }} ]; do
      echo "$first-$number.$rest slots={{ $each }}" >> /tmp/hosts
      until ssh $ssh "$first-$number.$rest" true; do sleep 1; done
      number=$((number + 1))
    done
    export OMPI_MCA_plm_rsh_agent=ssh OMPI_MCA_plm_rsh_args="$ssh"
    exec "$(command -v mpirun)" -n {{ $ranks }} --hostfile /tmp/hosts --map-by ppr:{{ $each }}:node --bind-to none \
      -x PATH -x LD_LIBRARY_PATH {{- range $variable, $_ := include "inflight.workerEnv" . | fromYaml }} -x {{ $variable }}{{ end }} "$(command -v inflight)" "$@"
  {{- else }}
  - |
    ssh-keygen -q -t ed25519 -N "" -f /tmp/host_key
    exec "$(command -v sshd || echo /usr/sbin/sshd)" -D -e -f /dev/null -p 2222 -h /tmp/host_key -o PidFile=none \
      -o StrictModes=no -o PasswordAuthentication=no -o AuthorizedKeysFile=/etc/inflight-ssh/authorized_keys
  {{- end }}
  - sh
{{- else -}}
command:
  - torchrun
  - --nnodes={{ $model.nodes }}
  - --nproc-per-node={{ $each }}
  - --node-rank=$(LWS_WORKER_INDEX)
  - --master-addr=$(LWS_LEADER_ADDRESS)
  - --master-port=29500
  - -m
  - inflight
{{- end }}
{{- end }}

{{- /* For a shell without ps: asks the process with rank 0 to end, the oldest that has its number. */ -}}
{{- define "inflight.drainRanks" -}}
sleep 5; rank=$(grep -lzxsE '(OMPI_COMM_WORLD_RANK|RANK)=0' /proc/[0-9]*/environ | sort -t/ -n -k3 | head -n1 | cut -d/ -f3); kill -TERM "$rank"; sleep {{ add .Values.drain.workerSeconds 5 }}
{{- end }}

{{- /* The root file system is read-only: compiled kernels go to /tmp, what the Hub sends into the cache's volume. */ -}}
{{- define "inflight.workerEnv" -}}
{{- $root := .root }}
{{- $defaults := dict "HOME" "/tmp" }}
{{- if eq .model.source "hub" }}
{{- $_ := set $defaults "HF_HOME" (printf "%s/huggingface" (trimSuffix "/" $root.Values.modelCache.mountPath)) }}
{{- with $root.Values.hubTokenSecret.name }}
{{- $_ := set $defaults "HF_TOKEN" (dict "valueFrom" (dict "secretKeyRef" (dict "name" . "key" $root.Values.hubTokenSecret.key))) }}
{{- end }}
{{- end }}
{{- if or (include "inflight.servesBlocks" .model) .model.kvEvents.enabled }}
{{- $_ := set $defaults "POD_IP" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" "status.podIP"))) }}
{{- end }}
{{- range $name, $value := .model.env }}{{ $_ := set $defaults $name $value }}{{ end }}
{{- toYaml $defaults }}
{{- end }}

{{- /* Not empty: other pods fetch this worker's KV cache blocks, on port 8010. TensorRT-LLM's transceiver picks its
ports, and its options are the user's. */ -}}
{{- define "inflight.servesBlocks" -}}
{{- if and (ne .phases "both") (eq .executor "reference") }}yes{{ end }}
{{- end }}

{{- /* What listeners to a worker's events call it; llm-d reads an address and a model. */ -}}
{{- define "inflight.eventsTopic" -}}
{{- $port := ternary 8000 8001 .root.Values.endpointPicker.enabled }}
{{- default (printf "kv@$(POD_IP):%d@%s" $port .model.name) .model.kvEvents.topic }}
{{- end }}

{{- define "inflight.workerPod" -}}
{{- $root := .root }}
{{- $model := .model }}
{{- $role := .role }}
{{- $nodes := int $model.nodes }}
{{- $adapters := clean (printf "/adapters/%s" $model.adapters.path) }}
{{- $serves := include "inflight.servesBlocks" $model }}
{{- $ranks := mul $model.tensorParallelSize $model.pipelineParallelSize | int -}}
{{ include "inflight.pod" (dict "root" $root "its" $model) }}
terminationGracePeriodSeconds: {{ add $root.Values.drain.workerSeconds 15 }}
containers:
  - name: worker
    image: {{ default (include "inflight.image" $root) $model.image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- include "inflight.command" . | nindent 4 }}
    args:
      - worker
      {{- with $model.path }}
      - {{ . | quote }}
      {{- end }}
      - --served-model-name={{ $model.name }}
      - --executor={{ $model.executor }}
      - --host=0.0.0.0
      - --grpc-port=8001
      - --metrics-port=8002
      - --drain-timeout-s={{ $root.Values.drain.workerSeconds }}
      {{- if $model.adapters.claimName }}
      - --executor-option=lora_adapter_dir={{ $adapters }}
      {{- if $model.adapters.loading }}
      - --adapter-dir={{ $adapters }}
      {{- end }}
      {{- end }}
      {{- if ne $model.phases "both" }}
      - --phases={{ $model.phases }}
      {{- end }}
      {{- if $serves }}
      - --executor-option=cache_transceiver_backend=tcp
      - --executor-option=cache_transceiver_address=$(POD_IP):8010
      - --executor-option=cache_transceiver_key_file=/etc/inflight-cache/kv.key
      {{- end }}
      {{- if $model.kvEvents.enabled }}
      - --kv-events-port=5557
      - --kv-events-replay-port=5558
      - {{ printf "--kv-events-topic=%s" (include "inflight.eventsTopic" .) | quote }}
      {{- end }}
      {{- include "inflight.options" $model.options | nindent 6 }}
    env: {{- include "inflight.env" (include "inflight.workerEnv" . | fromYaml) | nindent 6 }}
    {{- with $model.envFrom }}
    envFrom: {{ toYaml . | nindent 6 }}
    {{- end }}
    {{- if eq $role "follower" }}
    # Its rank 0 is drained first; then all ranks end.
    lifecycle:
      preStop:
        sleep: {seconds: {{ add $root.Values.drain.workerSeconds 10 }}}
    {{- else }}
    ports:
      - {name: grpc, containerPort: 8001}
      - {name: metrics, containerPort: 8002}
      {{- if $serves }}
      - {name: cache, containerPort: 8010}
      {{- end }}
      {{- if $model.kvEvents.enabled }}
      - {name: kv-events, containerPort: 5557}
      - {name: kv-events-past, containerPort: 5558}
      {{- end }}
    # Not ready until a token went through the engine; `/health/ready` says which stage it is in.
    startupProbe:
      httpGet: {path: /health/ready, port: metrics}
      periodSeconds: 5
      failureThreshold: {{ div (add $model.loadSeconds 4) 5 }}
    readinessProbe:
      httpGet: {path: /health/ready, port: metrics}
      periodSeconds: 5
      failureThreshold: 2
    # A stuck engine ends the worker by itself.
    livenessProbe:
      httpGet: {path: /health/live, port: metrics}
      periodSeconds: 5
      failureThreshold: 6
    lifecycle:
      preStop:
        {{- if gt $ranks 1 }}
        # Rank 0 drains and then ends the others; its launcher would give them a second.
        exec:
          command: [sh, -c, {{ include "inflight.drainRanks" $root | quote }}]
        {{- else }}
        sleep: {seconds: 5}
        {{- end }}
    {{- end }}
    securityContext: {{- include "inflight.container" $root | nindent 6 }}
    {{- $resources := deepCopy $model.resources }}
    {{- if $model.gpus }}
    {{- $resources = merge $resources (dict "limits" (dict $model.gpuResource $model.gpus)) }}
    {{- end }}
    {{- with $resources }}
    resources: {{ toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      - {name: shm, mountPath: /dev/shm}
      {{- if and $model.sshSecret (gt $nodes 1) }}
      - {name: ssh, mountPath: /etc/inflight-ssh, readOnly: true}
      {{- end }}
      {{- if $serves }}
      - {name: cache-key, mountPath: /etc/inflight-cache, readOnly: true}
      {{- end }}
      {{- if eq $model.source "mounted" }}
      - {name: models, mountPath: {{ $root.Values.modelVolume.mountPath }}, readOnly: true}
      {{- else if eq $model.source "hub" }}
      - {name: cache, mountPath: {{ $root.Values.modelCache.mountPath }}}
      {{- end }}
      {{- if $model.adapters.claimName }}
      - {name: adapters, mountPath: /adapters, readOnly: true}
      {{- end }}
      {{- with $model.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- if and $root.Values.endpointPicker.enabled (ne $role "follower") }}
  # Takes what proxies send to this pod.
  - name: gateway
    image: {{ default (include "inflight.image" $root) $root.Values.gateway.image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [inflight]
    args:
      - gateway
      - --worker=127.0.0.1:8001
      - --host=0.0.0.0
      - --port=8000
      - --shutdown-grace-s={{ $root.Values.drain.workerSeconds }}
      {{- if $root.Values.apiKeySecret }}
      - --api-key-file=/etc/inflight/api-keys
      {{- end }}
      {{- include "inflight.options" $root.Values.gateway.options | nindent 6 }}
    {{- with $root.Values.gateway.env }}
    env: {{- include "inflight.env" . | nindent 6 }}
    {{- end }}
    {{- with $root.Values.gateway.envFrom }}
    envFrom: {{ toYaml . | nindent 6 }}
    {{- end }}
    ports:
      - {name: http, containerPort: 8000}
    readinessProbe:
      httpGet: {path: /health/ready, port: http}
      periodSeconds: 5
      failureThreshold: 2
    livenessProbe:
      httpGet: {path: /health/live, port: http}
      periodSeconds: 5
      failureThreshold: 6
    lifecycle:
      preStop:
        sleep: {seconds: 5}
    securityContext: {{- include "inflight.container" $root | nindent 6 }}
    {{- with $root.Values.endpointPicker.resources }}
    resources: {{ toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- if $root.Values.apiKeySecret }}
      - {name: api-keys, mountPath: /etc/inflight, readOnly: true}
      {{- end }}
  {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- if and $root.Values.endpointPicker.enabled $root.Values.apiKeySecret (ne $role "follower") }}
  - name: api-keys
    secret: {secretName: {{ $root.Values.apiKeySecret }}}
  {{- end }}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ $model.sharedMemory }}}
  {{- if and $model.sshSecret (gt $nodes 1) }}
  - name: ssh
    secret: {secretName: {{ $model.sshSecret }}, defaultMode: 0400}
  {{- end }}
  {{- if $serves }}
  - name: cache-key
    secret: {secretName: {{ $root.Values.cacheKeySecret }}}
  {{- end }}
  {{- if eq $model.source "mounted" }}
  - name: models
    persistentVolumeClaim: {claimName: {{ $root.Values.modelVolume.claimName }}, readOnly: true}
  {{- else if eq $model.source "hub" }}
  {{- if $root.Values.modelCache.claimName }}
  - name: cache
    persistentVolumeClaim: {claimName: {{ $root.Values.modelCache.claimName }}}
  {{- else if not $root.Values.modelCache.size }}
  # Each pod downloads the model when it starts.
  - name: cache
    emptyDir: {}
  {{- end }}
  {{- end }}
  {{- if $model.adapters.claimName }}
  - name: adapters
    persistentVolumeClaim: {claimName: {{ $model.adapters.claimName }}, readOnly: true}
  {{- end }}
  {{- with $model.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
