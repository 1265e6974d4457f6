{{- define "forebay.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "forebay.driverUrl" -}}
http://{{ include "forebay.name" . }}-driver:7080
{{- end -}}

{{- define "forebay.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "forebay.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "forebay.labels" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "forebay.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* Restarts pods when their configuration changes. */ -}}
{{- define "forebay.checksum" -}}
checksum/configuration: {{ printf "%s%s" (tpl .Values.configuration .) (toJson .Values.jobs) | sha256sum }}
{{- end -}}

{{- define "forebay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "forebay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- define "forebay.mounts" -}}
- name: configuration
  mountPath: /etc/forebay/forebay.toml
  subPath: forebay.toml
  readOnly: true
- name: jobs
  mountPath: /etc/forebay/jobs
  readOnly: true
- name: tokens
  mountPath: /etc/forebay/secret
  readOnly: true
- name: scratch
  mountPath: /tmp
{{- end -}}

{{- define "forebay.volumes" -}}
- name: configuration
  configMap:
    name: {{ include "forebay.name" . }}
- name: jobs
  configMap:
    name: {{ include "forebay.name" . }}-jobs
- name: tokens
  secret:
    secretName: {{ .Values.tokens.existingSecret }}
    defaultMode: 0440
- name: scratch
  emptyDir: {}
{{- end -}}
