{{- define "slipstream.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: the longest suffix and a Pod's own still fit a DNS label. */}}
{{- define "slipstream.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "slipstream.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of one component. Argument: {root, component}. */}}
{{- define "slipstream.selectorLabels" -}}
app.kubernetes.io/name: {{ include "slipstream.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "slipstream.labels" -}}
{{ include "slipstream.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: slipstream
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "slipstream.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "slipstream.fullname" .root) .component) $account.name -}}
{{- else -}}
{{- required (printf "%s.serviceAccount.name is needed when create is false" .component) $account.name -}}
{{- end -}}
{{- end -}}

{{/* slipstream-<component> in image.registry. */}}
{{- define "slipstream.defaultRepository" -}}
{{- $name := printf "slipstream-%s" .component -}}
{{- with .root.Values.image.registry -}}{{- printf "%s/%s" . $name -}}{{- else -}}{{- $name -}}{{- end -}}
{{- end -}}

{{/* The component's own image, else the common one, else the one named after it. A digest belongs
to the repository beside it and is never carried over to another. */}}
{{- define "slipstream.image" -}}
{{- $common := .root.Values.image -}}
{{- $own := (index .root.Values .component).image -}}
{{- $repository := coalesce $own.repository $common.repository (include "slipstream.defaultRepository" .) -}}
{{- $digest := $own.digest -}}
{{- if and (not $own.repository) (not $digest) -}}{{- $digest = $common.digest -}}{{- end -}}
{{- if $digest -}}
{{- printf "%s@%s" $repository $digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (coalesce $own.tag $common.tag .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.engineImage" -}}
{{- $default := printf "%s:%s" (include "slipstream.defaultRepository" (dict "root" . "component" "engine")) (default .Chart.AppVersion .Values.image.tag) -}}
{{- default $default .Values.engine.image -}}
{{- end -}}

{{/* JSON list of the namespaces to look at; empty: all of them. */}}
{{- define "slipstream.namespaces" -}}
{{- if .Values.watchNamespaces -}}
{{- .Values.watchNamespaces | uniq | sortAlpha | toJson -}}
{{- else if .Values.rbac.namespaced -}}
{{- list .Release.Namespace | toJson -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.leaseName" -}}
{{ include "slipstream.fullname" . }}-operator
{{- end -}}

{{/* The one configuration file of each component. */}}
{{- define "slipstream.operatorConfig" -}}
{{- $config := dict
  "schemaVersion" 1
  "engineImage" (include "slipstream.engineImage" .)
  "engineResources" (default dict .Values.engine.resources)
  "podDefaults" .Values.engine.podDefaults
  "operatorNamespace" .Release.Namespace
  "leaseName" (include "slipstream.leaseName" .)
  "leaseDurationS" .Values.operator.leaseDurationSeconds
  "resyncS" .Values.operator.resyncSeconds
  "drainAcknowledgeS" .Values.operator.drainAcknowledgeSeconds
  "drainTimeoutS" .Values.engine.drainTimeoutSeconds
  "tokenRotateAfterS" nil
  "tokenSettleS" .Values.internalToken.settleSeconds
  "networkPolicies" .Values.networkPolicy.enabled
  "networkPeers" .Values.networkPolicy.enginePeers -}}
{{- with .Values.internalToken.rotateAfterHours -}}{{- $_ := set $config "tokenRotateAfterS" (mul 3600 .) -}}{{- end -}}
{{- with include "slipstream.namespaces" . -}}{{- $_ := set $config "namespaces" (fromJsonArray .) -}}{{- end -}}
{{- toPrettyJson $config -}}
{{- end -}}

{{- define "slipstream.gatewayConfig" -}}
{{- $config := dict
  "schemaVersion" 1
  "leaseDurationS" .Values.gateway.leaseDurationSeconds
  "retryAfterS" .Values.gateway.retryAfterSeconds
  "connectTimeoutS" .Values.gateway.connectTimeoutSeconds
  "readTimeoutS" .Values.gateway.readTimeoutSeconds
  "drainTimeoutS" .Values.gateway.drainTimeoutSeconds
  "maxBodyBytes" .Values.gateway.maxBodyBytes
  "observations" .Values.gateway.observations -}}
{{- with include "slipstream.namespaces" . -}}{{- $_ := set $config "namespaces" (fromJsonArray .) -}}{{- end -}}
{{- toPrettyJson $config -}}
{{- end -}}
