{{- /* What several templates share. Seconds a pod waits for others to notice that it leaves: 5. */ -}}

{{- define "inflight.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- /* A worker's name: the release's and the model's, as a DNS label that leaves room for a pod's number. */ -}}
{{- define "inflight.worker" -}}
{{- $label := .model.name | lower | replace "/" "-" | replace "_" "-" | replace "." "-" | replace " " "-" -}}
{{- printf "%s-worker-%s" .root.Release.Name $label | trunc 52 | trimSuffix "-" -}}
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

{{- define "inflight.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "inflight.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "inflight.env" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
