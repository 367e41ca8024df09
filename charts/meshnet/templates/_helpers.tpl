{{/* What names and labels, images and environment have in common. */}}

{{/* Helm allows dots in the name of a release, Kubernetes none in that of a Service. */}}
{{- define "meshnet.fullname" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if contains "meshnet" $release -}}
{{- $release | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-meshnet" $release | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "meshnet.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "meshnet.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The name is fixed: NetworkPolicies of MeshModels let pods with this label reach shards. */}}
{{- define "meshnet.selector" -}}
app.kubernetes.io/name: meshnet-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* metadata of an object: (dict "root" $ "name" "" "namespace" "" "labels" dict "annotations" dict "component" "");
all but root are optional, and namespace "-" is an object of the whole cluster. */}}
{{- define "meshnet.metadata" -}}
{{- $root := .root -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_"))
  "app.kubernetes.io/name" (.component | default "meshnet-operator")
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "meshnet" -}}
name: {{ .name | default (include "meshnet.fullname" $root) }}
{{- if ne .namespace "-" }}
namespace: {{ .namespace | default $root.Release.Namespace }}
{{- end }}
labels:
  {{- merge dict $own (.labels | default dict) $root.Values.labels | toYaml | nindent 2 }}
{{- with merge dict (.annotations | default dict) $root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "image" .Values.image) */}}
{{- define "meshnet.image" -}}
{{- with .root.Values.global.registry }}{{ . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* Kubernetes puts the API server's address into the place of the variable. */}}
{{- define "meshnet.noProxy" -}}
{{- $own := list "$(KUBERNETES_SERVICE_HOST)" "localhost" "127.0.0.1" ".svc" (printf ".%s" .Values.clusterDomain) -}}
{{- concat $own (compact (list .Values.proxy.noProxy)) | join "," -}}
{{- end -}}

{{/* Settings of the operator: a dictionary of environment variables. */}}
{{- define "meshnet.settings" -}}
{{- $made := dict
  "MESHNET_OPERATOR_NODE_IMAGE" (include "meshnet.image" (dict "root" . "image" .Values.nodeImage))
  "MESHNET_OPERATOR_NAMESPACE" (ternary .Release.Namespace "" (eq .Values.scope "Namespace"))
  "MESHNET_OPERATOR_LEASE_NAMESPACE" .Release.Namespace
  "MESHNET_OPERATOR_LEASE_NAME" (include "meshnet.fullname" .)
  "MESHNET_OPERATOR_CLUSTER_DOMAIN" .Values.clusterDomain
  "MESHNET_OPERATOR_HUB_ENDPOINT" .Values.hub.endpoint
  "MESHNET_OPERATOR_LOG_LEVEL" .Values.logLevel
  "HOME" "/tmp" -}}
{{- with .Values.global.imagePullSecrets -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names .name }}{{ end -}}
{{- $_ := set $made "MESHNET_OPERATOR_POD_PULL_SECRETS" (toJson $names) -}}
{{- end -}}
{{- range $name, $url := dict "HTTP_PROXY" .Values.proxy.http "HTTPS_PROXY" .Values.proxy.https -}}
{{- if $url -}}
{{- $_ := set $made $name $url -}}
{{- $_ := set $made (printf "MESHNET_OPERATOR_POD_%s" $name) $url -}}
{{- $_ := set $made "NO_PROXY" (include "meshnet.noProxy" $) -}}
{{- $_ := set $made "MESHNET_OPERATOR_POD_NO_PROXY" (include "meshnet.noProxy" $) -}}
{{- end -}}
{{- end -}}
{{- with .Values.caBundle -}}
{{- if .configMap -}}
{{- $_ := set $made "SSL_CERT_FILE" (printf "/etc/meshnet/ca/%s" .key) -}}
{{- $_ := set $made "MESHNET_OPERATOR_POD_CA_CONFIGMAP" .configMap -}}
{{- $_ := set $made "MESHNET_OPERATOR_POD_CA_KEY" .key -}}
{{- end -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}

{{/* The stated tolerations, and a short stay on lost nodes unless those taints are named. */}}
{{- define "meshnet.tolerations" -}}
{{- $made := .Values.tolerations -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $named := false -}}
{{- range $.Values.tolerations }}{{ if eq (.key | default "") $key }}{{ $named = true }}{{ end }}{{ end -}}
{{- if not $named -}}
{{- $made = append $made (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 10) -}}
{{- end -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}

{{/* Ports to the hub beside 443 and 80: those of a mirror and of proxies. */}}
{{- define "meshnet.hubPorts" -}}
{{- $ports := list 443 80 -}}
{{- range compact (list .Values.hub.endpoint .Values.proxy.http .Values.proxy.https) -}}
{{- with regexFind ":[0-9]+$" (urlParse .).host -}}
{{- $ports = append $ports (trimPrefix ":" . | int) -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}
