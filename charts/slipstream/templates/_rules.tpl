{{/* What the operator does in every namespace that it looks at. */}}
{{- define "slipstream.operatorRules" -}}
- apiGroups: [slipstream.dev]
  resources: [inferencemodels]
  verbs: [get, list, watch]
- apiGroups: [slipstream.dev]
  resources: [inferencemodels/status]
  verbs: [patch]
- apiGroups: [slipstream.dev]
  resources: [modelroutes]
  verbs: [get, list, watch, create, patch]
# To take out what a gateway that was killed left there.
- apiGroups: [slipstream.dev]
  resources: [modelroutes/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods, services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# A creation cannot be limited by name; what is read or changed is one Secret. `delete` is what a
# change of owners needs where the API server guards them; we delete none.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [slipstream-internal-token]
  verbs: [get, list, watch, patch, delete]
# The gateways' signs of life. They are all in the release's namespace, but the library that holds the
# watches (kopf) watches every kind in the same namespaces.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* What GPUs there are. None of these objects is in a namespace, so only a ClusterRole can allow it; in
namespaced mode the administrator may grant it or not. */}}
{{- define "slipstream.gpuRules" -}}
- apiGroups: [slipstream.dev]
  resources: [gpuclasses]
  verbs: [get, list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, deviceclasses]
  verbs: [get, list, watch]
{{- end -}}

{{/* What a gateway does in every namespace that it looks at. */}}
{{- define "slipstream.gatewayRules" -}}
- apiGroups: [slipstream.dev]
  resources: [modelroutes]
  verbs: [get, list, watch]
- apiGroups: [slipstream.dev]
  resources: [modelroutes/status]
  verbs: [patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [slipstream-internal-token]
  verbs: [get, list, watch]
{{- end -}}

{{/* In the release's own namespace: the operator's Lease, and the gateways' as signs of life. In
namespaced mode the watches go over this namespace too, and must be able to see that there is
nothing for them. */}}
{{- define "slipstream.operatorLeaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "slipstream.leaseName" . }}]
  verbs: [update]
{{- if .Values.rbac.namespaced }}
- apiGroups: [slipstream.dev]
  resources: [inferencemodels, modelroutes]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods, services, configmaps]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [slipstream-internal-token]
  verbs: [get, list, watch]
{{- end }}
{{- end -}}

{{/* A gateway's Lease is named like its Pod, which nobody knows beforehand. */}}
{{- define "slipstream.gatewayLeaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, patch, delete]
{{- end -}}

{{/* One role and its binding. Argument: {root, component, kind, name, namespace, rules}. */}}
{{- define "slipstream.grant" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "slipstream.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
