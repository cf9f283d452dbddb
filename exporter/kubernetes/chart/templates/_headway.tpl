{{/*
The parts of a pod that has a sidecar. A chart of your own that depends on this one puts them into its own Job, for example:

    apiVersion: batch/v1
    kind: Job
    metadata: {name: mine}
    spec:
      completionMode: Indexed
      completions: 2
      parallelism: 2
      template:
        metadata:
          labels: {headway-sidecar: "true"}  # what the PodMonitor looks for
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: {{ .Values.headway.sidecar.terminationGracePeriodSeconds }}
          securityContext: {fsGroup: 65532}  # lets the sidecar write its state
          initContainers:
            {{- include "headway.sidecar" .Subcharts.headway | nindent 12 }}
          containers:
            - name: trainer
              image: mine:1
              command: [headway, run, --, ft_launcher, train.py]
              env:
                {{- include "headway.trainerEnv" .Subcharts.headway | nindent 16 }}
              volumeMounts:
                - {name: headway-journal, mountPath: /run/headway}
          volumes:
            {{- include "headway.volumes" .Subcharts.headway | nindent 12 }}

With sidecar.kubernetesApi the pod's serviceAccountName is `headway`, with sidecar.gpus its runtimeClassName is NVIDIA's. All take the chart's own
scope: `.` here, `.Subcharts.headway` there.
*/}}

{{- define "headway.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "headway.runEnv" -}}
- {name: HEADWAY_DIR, value: /run/headway}
- {name: HEADWAY_RUN, valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}}
- name: HEADWAY_POD_INDEX
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end -}}

{{- define "headway.trainerEnv" -}}
{{ include "headway.runEnv" . }}
- name: HEADWAY_ATTEMPT
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}}
{{- end -}}

{{- define "headway.sidecar" -}}
{{- $sidecar := .Values.sidecar -}}
- name: headway
  image: {{ include "headway.image" (dict "image" .Values.images.exporter "chart" .Chart) | quote }}
  imagePullPolicy: {{ .Values.images.exporter.pullPolicy }}
  restartPolicy: Always
  command: [headway, exporter]
  env:
    {{- include "headway.runEnv" . | nindent 4 }}
    - {name: HEADWAY_STATE_DIR, value: /var/lib/headway}
    - {name: HEADWAY_LISTEN, value: ":9838"}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: HEADWAY_KUBERNETES, value: {{ ternary "auto" "off" $sidecar.kubernetesApi.enabled | quote }}}
    - {name: HEADWAY_GPUS, value: {{ ternary "on" "off" $sidecar.gpus.enabled | quote }}}
    {{- if $sidecar.gpus.enabled }}
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
    {{- end }}
    {{- with .Values.webConfig }}
    {{- if .enabled }}
    - {name: HEADWAY_WEB_CONFIG, value: /etc/headway/web.yml}
    - {name: HEADWAY_STATUS_URL, value: "https://localhost:9838"}
    - {name: HEADWAY_STATUS_CA_FILE, value: /etc/headway/ca.crt}
    - {name: HEADWAY_STATUS_SERVER_NAME, value: {{ .serverName }}}
    {{- if .mutual }}
    - {name: HEADWAY_STATUS_CERT_FILE, value: /etc/headway-scrape/tls.crt}
    - {name: HEADWAY_STATUS_KEY_FILE, value: /etc/headway-scrape/tls.key}
    {{- else }}
    - {name: HEADWAY_STATUS_USER, valueFrom: {secretKeyRef: {name: {{ .scrapeSecretName }}, key: username, optional: true}}}
    - {name: HEADWAY_STATUS_PASSWORD_FILE, value: /etc/headway/password}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- with $sidecar.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: headway, containerPort: 9838, protocol: TCP}
  livenessProbe:
    initialDelaySeconds: 30
    {{- if .Values.webConfig.enabled }}
    exec: {command: [headway, status]}
    periodSeconds: 60
    timeoutSeconds: 10
    failureThreshold: 5
    {{- else }}
    httpGet: {path: /healthz, port: headway}
    periodSeconds: 15
    timeoutSeconds: 5
    failureThreshold: 4
    {{- end }}
  readinessProbe:
    {{- if .Values.webConfig.enabled }}
    tcpSocket: {port: headway}
    {{- else }}
    httpGet: {path: /healthz, port: headway}
    {{- end }}
    periodSeconds: 10
    timeoutSeconds: 5
  resources:
    {{- toYaml $sidecar.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: headway-journal, mountPath: /run/headway, readOnly: true}
    - {name: headway-state, mountPath: /var/lib/headway}
    {{- if .Values.trainer.enabled }}
    - {name: checkpoints, mountPath: /checkpoints, readOnly: true}
    {{- end }}
    {{- if .Values.webConfig.enabled }}
    - {name: headway-web, mountPath: /etc/headway, readOnly: true}
    {{- if .Values.webConfig.mutual }}
    - {name: headway-scrape, mountPath: /etc/headway-scrape, readOnly: true}
    {{- end }}
    {{- end }}
    {{- if $sidecar.kubernetesApi.enabled }}
    - {name: headway-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- end }}
{{- end -}}

{{- define "headway.volumes" -}}
- name: headway-journal
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.sidecar.journalSize }}}
- name: headway-state
  persistentVolumeClaim: {claimName: {{ .Values.state.claimName }}}
{{- with .Values.webConfig }}
{{- if .enabled }}
- name: headway-web
  projected:
    defaultMode: 0440
    sources:
      - secret: {name: {{ .secretName }}, optional: true, items: [{key: web.yml, path: web.yml}]}
      - secret:
          name: {{ .tlsSecretName }}
          optional: true
          items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}, {key: ca.crt, path: ca.crt}]
      - secret: {name: {{ .scrapeSecretName }}, optional: true, items: [{key: password, path: password}]}
{{- if .mutual }}
- name: headway-scrape
  projected:
    defaultMode: 0440
    sources:
      - secret: {name: {{ .scrapeSecretName }}, optional: true, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.sidecar.kubernetesApi.enabled }}
- name: headway-token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}
{{- end -}}

{{- define "headway.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .claim.claimName }}
  labels:
    app.kubernetes.io/name: {{ .name }}
  annotations:
    helm.sh/resource-policy: keep  # what a run has learned outlives the release
spec:
  accessModes: {{ toJson .claim.accessModes }}
  {{- with .claim.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .claim.size }}
{{- end -}}
