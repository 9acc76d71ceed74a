{{/*
The parts that operator and gateway have in common.
Argument: {root, component, config, port, healthPath, readyPath, graceSeconds,
maxUnavailable}.
*/}}
{{- define "slipstream.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "slipstream.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
data:
  {{ .component }}.json: |
    {{- .config | nindent 4 }}
{{- end -}}

{{- define "slipstream.serviceAccount" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "slipstream.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# The Pods that need the token ask for it themselves.
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{- define "slipstream.podDisruptionBudget" -}}
{{- $budget := (index .root.Values .component).podDisruptionBudget -}}
{{- if $budget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "slipstream.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $budget.maxUnavailable }}
  # A Pod that does not work protects nobody; a node with one must still be drainable.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "slipstream.selectorLabels" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* Its one port, for everyone: of the gateway the front door, of the operator metrics and health.
Nothing is said of what the Pods themselves connect to. */}}
{{- define "slipstream.networkPolicy" -}}
{{- if .root.Values.networkPolicy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "slipstream.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "slipstream.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - port: {{ .port }}
          protocol: TCP
{{- end -}}
{{- end -}}

{{- define "slipstream.deployment" -}}
{{- $values := index .root.Values .component -}}
{{- $selector := include "slipstream.selectorLabels" . -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "slipstream.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
spec:
  replicas: {{ $values.replicaCount }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: {{ .maxUnavailable }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  template:
    metadata:
      # Not the chart's version: an upgrade that changes nothing here restarts nothing.
      labels:
        {{- $selector | nindent 8 }}
        # What the NetworkPolicies of engines know our Pods by.
        app.kubernetes.io/part-of: slipstream
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .component }}
        # The file is read once, so a change of it must restart the Pod.
        checksum/config: {{ sha256sum .config }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "slipstream.serviceAccountName" . }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .graceSeconds }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        {{- toYaml $values.podSecurityContext | nindent 8 }}
      containers:
        - name: {{ .component }}
          image: {{ include "slipstream.image" . | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command:
            {{- toYaml $values.command | nindent 12 }}
          args: [{{ .component }}, serve, --config, /etc/slipstream/{{ .component }}.json]
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            {{- if eq .component "gateway" }}
            # Its Lease belongs to the Pod and goes with it.
            - name: POD_UID
              valueFrom: {fieldRef: {fieldPath: metadata.uid}}
            {{- end }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: http
              containerPort: {{ .port }}
          # Imports take seconds on a busy node; liveness starts counting after them.
          startupProbe:
            httpGet: {path: {{ .healthPath }}, port: http}
            periodSeconds: 2
            timeoutSeconds: 3
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: {{ .healthPath }}, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: {{ .readyPath }}, port: http}
            periodSeconds: 2
            timeoutSeconds: 3
            failureThreshold: 3
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          # A process that cannot start writes its reason there.
          terminationMessagePolicy: FallbackToLogsOnError
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: config, mountPath: /etc/slipstream, readOnly: true}
            - {name: tmp, mountPath: /tmp}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ include "slipstream.fullname" .root }}-{{ .component }}}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range . }}
        {{- $constraint := dict "labelSelector" (dict "matchLabels" (fromYaml $selector)) }}
        {{- range $key, $value := . }}{{ $_ := set $constraint $key $value }}{{ end }}
        - {{ toYaml $constraint | nindent 10 | trim }}
        {{- end }}
      {{- end }}
{{- end -}}
