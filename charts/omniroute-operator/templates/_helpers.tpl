{{- define "omniroute.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Cluster-scoped names carry the namespace: two releases never share one. */}}
{{- define "omniroute.clusterName" -}}
{{ printf "%s-%s" (include "omniroute.fullname" .) .Release.Namespace }}
{{- end }}

{{- define "omniroute.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "omniroute.fullname" .) }}
{{- else }}{{ required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "omniroute.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "omniroute.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "omniroute.labels" -}}
{{ include "omniroute.selectorLabels" . }}
app.kubernetes.io/part-of: omniroute
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "omniroute.operatorLabels" -}}
{{ include "omniroute.labels" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- /* What the operator may do where it works: a ClusterRole, or one Role in each watched namespace. The list is that of config/rbac. */}}
{{- define "omniroute.operatorRules" -}}
{{ (.Files.Get "files/operator_role.yaml" | fromYaml).rules | toYaml }}
{{- end }}
