{{- /* A model of the values with its defaults, and the mistakes that no schema finds. Returns YAML. */ -}}
{{- define "inflight.model" -}}
{{- $root := .root }}
{{- $model := merge (deepCopy .given) (dict "path" "" "resourceName" "" "image" "" "executor" "reference" "phases" "both" "replicas" 1 "tensorParallelSize" 1 "pipelineParallelSize" 1 "gpus" 0 "gpuResource" "nvidia.com/gpu" "options" (dict) "env" (dict) "envFrom" (list) "resources" (dict) "sharedMemory" "8Gi" "loadSeconds" 3600 "nodes" 1 "sshSecret" "" "adapters" (dict "claimName" "" "path" "" "loading" false) "kvEvents" (dict "enabled" false "topic" "") "extraVolumes" (list) "extraVolumeMounts" (list) "podLabels" (dict) "podAnnotations" (dict) "autoscaling" (dict "enabled" false)) }}
{{- if hasKey .given "replicas" }}{{ $_ := set $model "replicas" .given.replicas }}{{ end }}
{{- $ranks := mul $model.tensorParallelSize $model.pipelineParallelSize | int }}
{{- $nodes := int $model.nodes }}
{{- if mod $ranks $nodes }}
{{- fail (printf "models: `%s` has %d ranks, which `nodes: %d` cannot share" $model.name $ranks $nodes) }}
{{- end }}
{{- $each := div $ranks $nodes | int }}
{{- if and $model.gpus (ne (int $model.gpus) $each) }}
{{- fail (printf "models: `%s` has %d ranks on each machine and `gpus: %d`; give it one GPU for each rank" $model.name $each (int $model.gpus)) }}
{{- end }}
{{- if and (gt $nodes 1) (eq $model.executor "simulated") }}
{{- fail (printf "models: `%s` is simulated, which `nodes: %d` cannot share" $model.name $nodes) }}
{{- end }}
{{- if and (gt $nodes 1) (eq $model.executor "tensorrt_llm") (not $model.sshSecret) }}
{{- fail (printf "models: `%s` has `nodes: %d`, and mpirun reaches the other machines by ssh: set `sshSecret`" $model.name $nodes) }}
{{- end }}
{{- if ne $model.phases "both" }}
{{- if eq $model.executor "simulated" }}
{{- fail (printf "models: `%s` is simulated, which `phases: %s` cannot split" $model.name $model.phases) }}
{{- end }}
{{- if and (eq $model.executor "reference") (gt $ranks 1) }}
{{- fail (printf "models: `%s` has `phases: %s` and %d ranks; the reference executor hands prompts over from one rank" $model.name $model.phases $ranks) }}
{{- end }}
{{- if and (eq $model.executor "reference") (not $root.Values.cacheKeySecret) }}
{{- fail (printf "models: workers of `%s` fetch KV cache blocks from other pods, for which they share a key: set `cacheKeySecret`" $model.name) }}
{{- end }}
{{- end }}
{{- /* Where the model is: in the volume, in a volume of the user's, on the Hub, or in the package. */ -}}
{{- $source := "embedded" }}
{{- if hasPrefix "/" $model.path }}
{{- $source = "mounted" }}
{{- $mounted := list }}
{{- range $model.extraVolumeMounts }}{{ $mounted = append $mounted (printf "%s/" (trimSuffix "/" .mountPath)) }}{{ end }}
{{- range $mounted }}{{ if hasPrefix . (printf "%s/" $model.path) }}{{ $source = "extra" }}{{ end }}{{ end }}
{{- if and (eq $source "mounted") (not $root.Values.modelVolume.claimName) }}
{{- fail (printf "models: `%s` has a `path`, and `modelVolume.claimName` is not set; a name on the Hub has no leading slash" $model.name) }}
{{- end }}
{{- if and (eq $source "mounted") (not (hasPrefix (printf "%s/" (trimSuffix "/" $root.Values.modelVolume.mountPath)) (printf "%s/" $model.path))) }}
{{- fail (printf "models: the path `%s` of `%s` is not below `modelVolume.mountPath` (`%s`) or a mount of `extraVolumeMounts`" $model.path $model.name $root.Values.modelVolume.mountPath) }}
{{- end }}
{{- else if $model.path }}
{{- $source = "hub" }}
{{- if not (regexMatch "^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/-]*)?$" $model.path) }}
{{- fail (printf "models: the path `%s` of `%s` is neither absolute nor a name on the Hub (ORG/NAME or ORG/NAME@REVISION)" $model.path $model.name) }}
{{- end }}
{{- if and (gt $nodes 1) $root.Values.modelCache.size (not $root.Values.modelCache.claimName) }}
{{- fail (printf "models: `%s` spans machines, whose pods have no separate volumes: set `modelCache.claimName`, or leave `modelCache.size` out" $model.name) }}
{{- end }}
{{- end }}
{{- if and $model.adapters.path (not $model.adapters.claimName) }}
{{- fail (printf "models: `adapters.claimName` of `%s` is not set" $model.name) }}
{{- end }}
{{- $scaling := $model.autoscaling }}
{{- if $scaling.enabled }}
{{- if lt (int (default 4 $scaling.maxReplicas)) (int (default 1 $scaling.minReplicas)) }}
{{- fail (printf "models: `autoscaling.maxReplicas` of `%s` is below its `minReplicas`" $model.name) }}
{{- end }}
{{- if and (eq (default "keda" $scaling.provider) "keda") (not $scaling.prometheus) }}
{{- fail (printf "models: KEDA asks Prometheus how busy `%s` is: set its `autoscaling.prometheus`, such as http://prometheus.monitoring:9090" $model.name) }}
{{- end }}
{{- end }}
{{- toYaml (merge $model (dict "source" $source)) }}
{{- end }}

{{- /* The entry with the other phase of a model; fails where there is none, or several. Returns YAML. */ -}}
{{- define "inflight.counterpart" -}}
{{- $model := .model }}
{{- $other := eq $model.phases "context" | ternary "generation" "context" }}
{{- $found := list }}
{{- range $given := .root.Values.models }}
{{- if and (eq $given.name $model.name) (eq (default "both" $given.phases) $other) }}{{ $found = append $found $given }}{{ end }}
{{- end }}
{{- if ne (len $found) 1 }}
{{- fail (printf "models: `%s` has `phases: %s` and %d entries with `phases: %s`; it needs one" $model.name $model.phases (len $found) $other) }}
{{- end }}
{{- $found = first $found }}
{{- range $key, $usual := dict "path" "" "executor" "reference" }}
{{- $one := default $usual (index $model $key) }}
{{- $two := default $usual (index $found $key) }}
{{- if ne $one $two }}
{{- fail (printf "models: both entries of `%s` need the same `%s`, and it is `%s` and `%s`" $model.name $key $one $two) }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{- /* Two models under one name of a Service would be one. */ -}}
{{- define "inflight.checkNames" -}}
{{- $seen := dict }}
{{- range $given := .Values.models }}
{{- range $name := list (include "inflight.worker" (dict "root" $ "model" $given)) (include "inflight.workload" (dict "root" $ "model" $given)) | uniq }}
{{- if hasKey $seen $name }}
{{- fail (printf "models: `%s` and `%s` would both be named `%s`; give one of them a `resourceName`" (index $seen $name) $given.name $name) }}
{{- end }}
{{- $_ := set $seen $name $given.name }}
{{- end }}
{{- end }}
{{- end }}
