{{- /* What several templates share: names, labels, and the parts of a pod that do not depend on its role. */ -}}

{{- define "inflight.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- /* A worker's name: the release's and the model's, and of two entries of a model also its phase; a DNS label that
leaves room for a pod's number. */ -}}
{{- define "inflight.worker" -}}
{{- $label := default .model.name .model.resourceName | lower | replace "/" "-" | replace "_" "-" | replace "." "-" | replace " " "-" -}}
{{- $phases := default "both" .model.phases -}}
{{- $end := eq $phases "both" | ternary "" (printf "-%s" $phases) -}}
{{- printf "%s-worker-%s" .root.Release.Name $label | trunc (sub 52 (len $end) | int) | trimSuffix "-" }}{{ $end -}}
{{- end }}

{{- /* The object with a worker's pods. */ -}}
{{- define "inflight.workload" -}}
{{- $name := include "inflight.worker" . -}}
{{- /* A LeaderWorkerSet's own headless Service has its name, and a pod's has two numbers more. */ -}}
{{- if gt (int .model.nodes) 1 }}{{ printf "%s-group" (trunc 44 $name | trimSuffix "-") }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{- define "inflight.common" -}}
app.kubernetes.io/part-of: inflight
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "inflight.managed" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "inflight.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default .Release.Name .Values.serviceAccount.name }}{{ else }}{{ .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- /* root; its: the values of the gateway or of a model; account: one for Kubernetes' API, if it is called. */ -}}
{{- define "inflight.pod" -}}
{{- $root := .root -}}
automountServiceAccountToken: {{ not (empty .account) }}
enableServiceLinks: false
{{- with default (include "inflight.serviceAccount" $root) .account }}
serviceAccountName: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.podSecurityContext }}
securityContext: {{ toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "initContainers" }}
{{- with index $.its $key }}
{{ $key }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- range $key := list "priorityClassName" "runtimeClassName" }}
{{- with index $.its $key }}
{{ $key }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "inflight.container" -}}
{{ toYaml .Values.securityContext }}
{{- end }}

{{- /* A scalar as text. Large integers are floats to Helm, which would write 1048576 as 1.048576e+06. */ -}}
{{- define "inflight.text" -}}
{{- $format := "%v" }}
{{- if kindIs "float64" . }}{{ if eq . (floor .) }}{{ $format = "%.0f" }}{{ end }}{{ end }}
{{- printf $format . }}
{{- end }}

{{- /* A value is text, or `valueFrom` as in a pod. */ -}}
{{- define "inflight.env" -}}
{{- range $name, $value := . }}
{{- if kindIs "map" $value }}
- name: {{ $name }}
  {{- toYaml $value | nindent 2 }}
{{- else }}
- {name: {{ $name }}, value: {{ include "inflight.text" $value | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* An option with a list of values is given once for each. */ -}}
{{- define "inflight.options" -}}
{{- range $option, $value := . }}
{{- range $one := kindIs "slice" $value | ternary $value (list $value) }}
- {{ printf "--%s=%s" $option (include "inflight.text" $one) | quote }}
{{- end }}
{{- end }}
{{- end }}
