"""Maps protobuf fields to JSON fields, for the messages that clients send only as protobuf.

From 1.32 on, `kubectl create <kind>` and `kubectl auth` send protobuf and do not fall back to JSON; nor does
kube-scheduler with its bindings, events and lease. Only the fields that these set are listed; a message with any
other field is refused, never read in part.

Entries are `number name type`. Types: text, int, flag, Time, MicroTime, the name of a message, `{type}` for a map
from text, and `skip` for fields that a client may send but that are ignored. `*` marks a list, `?` a field whose
zero value differs from absence. A kind of two groups is named with its group, except in the core group.
"""

from collections.abc import Mapping

import msgspec

_LINES = """
ObjectMeta: 1 name text, 2 generateName text, 3 namespace text, 4 selfLink skip, 5 uid text
ObjectMeta: 6 resourceVersion text, 7 generation skip, 8 creationTimestamp skip, 11 labels {text}
ObjectMeta: 12 annotations {text}, 13 ownerReferences *OwnerReference, 14 finalizers *text
ObjectMeta: 17 managedFields skip
OwnerReference: 1 kind text, 3 name text, 4 uid text, 5 apiVersion text, 6 controller flag
OwnerReference: 7 blockOwnerDeletion flag
LabelSelector: 1 matchLabels {text}, 2 matchExpressions *LabelSelectorRequirement
LabelSelectorRequirement: 1 key text, 2 operator text, 3 values *text
DeleteOptions: 1 gracePeriodSeconds ?int, 2 preconditions Preconditions, 3 orphanDependents ?flag
DeleteOptions: 4 propagationPolicy text, 5 dryRun *text
Preconditions: 1 uid text, 2 resourceVersion text
Namespace: 1 metadata ObjectMeta, 2 spec skip, 3 status skip
ConfigMap: 1 metadata ObjectMeta, 2 data {text}, 3 binaryData {bytes}, 4 immutable flag
Secret: 1 metadata ObjectMeta, 2 data {bytes}, 3 type text, 4 stringData {text}, 5 immutable flag
Service: 1 metadata ObjectMeta, 2 spec ServiceSpec, 3 status skip
ServiceSpec: 1 ports *ServicePort, 2 selector {text}, 3 clusterIP text, 4 type text, 7 sessionAffinity text
ServiceSpec: 8 loadBalancerIP text, 10 externalName text, 11 externalTrafficPolicy text
ServiceSpec: 12 healthCheckNodePort int, 13 publishNotReadyAddresses flag, 18 clusterIPs *text
ServicePort: 1 name text, 2 protocol text, 3 port int, 4 targetPort IntOrString, 5 nodePort int
Job: 1 metadata ObjectMeta, 2 spec JobSpec, 3 status skip
JobSpec: 1 parallelism ?int, 2 completions ?int, 3 activeDeadlineSeconds ?int, 4 selector LabelSelector
JobSpec: 5 manualSelector flag, 6 template PodTemplateSpec, 7 backoffLimit ?int, 8 ttlSecondsAfterFinished ?int
ServiceAccount: 1 metadata ObjectMeta, 4 automountServiceAccountToken ?flag
Deployment: 1 metadata ObjectMeta, 2 spec DeploymentSpec, 3 status skip
DeploymentSpec: 1 replicas ?int, 2 selector LabelSelector, 3 template PodTemplateSpec
DeploymentSpec: 4 strategy DeploymentStrategy, 5 minReadySeconds int, 6 revisionHistoryLimit ?int
DeploymentSpec: 7 paused flag, 9 progressDeadlineSeconds ?int
DeploymentStrategy: 1 type text, 2 rollingUpdate RollingUpdateDeployment
RollingUpdateDeployment: 1 maxUnavailable IntOrString, 2 maxSurge IntOrString
PodTemplateSpec: 1 metadata ObjectMeta, 2 spec PodSpec
Pod: 1 metadata ObjectMeta, 2 spec PodSpec, 3 status skip
PodSpec: 2 containers *Container, 3 restartPolicy text, 4 terminationGracePeriodSeconds ?int, 6 dnsPolicy text
PodSpec: 7 nodeSelector {text}, 8 serviceAccountName text, 9 serviceAccount text, 10 nodeName text
PodSpec: 11 hostNetwork flag, 12 hostPID flag, 13 hostIPC flag, 16 hostname text, 17 subdomain text
PodSpec: 19 schedulerName text, 20 initContainers *Container, 21 automountServiceAccountToken ?flag
PodSpec: 22 tolerations *Toleration, 24 priorityClassName text
Toleration: 1 key text, 2 operator text, 3 value text, 4 effect text, 5 tolerationSeconds ?int
Container: 1 name text, 2 image text, 3 command *text, 4 args *text, 5 workingDir text, 6 ports *ContainerPort
Container: 7 env *EnvVar, 8 resources ResourceRequirements, 13 terminationMessagePath text
Container: 14 imagePullPolicy text, 16 stdin flag, 17 stdinOnce flag, 18 tty flag
Container: 20 terminationMessagePolicy text
ContainerPort: 1 name text, 2 hostPort int, 3 containerPort int, 4 protocol text, 5 hostIP text
EnvVar: 1 name text, 2 value text
ResourceRequirements: 1 limits {Quantity}, 2 requests {Quantity}
Role: 1 metadata ObjectMeta, 2 rules *PolicyRule
ClusterRole: 1 metadata ObjectMeta, 2 rules *PolicyRule
PolicyRule: 1 verbs *text, 2 apiGroups *text, 3 resources *text, 4 resourceNames *text
PolicyRule: 5 nonResourceURLs *text
RoleBinding: 1 metadata ObjectMeta, 2 subjects *Subject, 3 roleRef RoleRef
ClusterRoleBinding: 1 metadata ObjectMeta, 2 subjects *Subject, 3 roleRef RoleRef
RoleRef: 1 apiGroup text, 2 kind text, 3 name text
Subject: 1 kind text, 2 apiGroup text, 3 name text, 4 namespace text
PodDisruptionBudget: 1 metadata ObjectMeta, 2 spec PodDisruptionBudgetSpec, 3 status skip
PodDisruptionBudgetSpec: 1 minAvailable IntOrString, 2 selector LabelSelector, 3 maxUnavailable IntOrString
PodDisruptionBudgetSpec: 4 unhealthyPodEvictionPolicy text
Eviction: 1 metadata ObjectMeta, 2 deleteOptions DeleteOptions
PriorityClass: 1 metadata ObjectMeta, 2 value ?int, 3 globalDefault flag, 4 description text
PriorityClass: 5 preemptionPolicy text
SelfSubjectReview: 1 metadata ObjectMeta, 2 status skip
SelfSubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessReviewSpec, 3 status skip
SubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessReviewSpec, 3 status skip
LocalSubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessReviewSpec, 3 status skip
AccessReviewSpec: 1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes NonResourceAttributes
AccessReviewSpec: 3 user text, 4 groups *text, 6 uid text
ResourceAttributes: 1 namespace text, 2 verb text, 3 group text, 4 version text, 5 resource text
ResourceAttributes: 6 subresource text, 7 name text
NonResourceAttributes: 1 path text, 2 verb text
SelfSubjectRulesReview: 1 metadata ObjectMeta, 2 spec RulesReviewSpec, 3 status skip
RulesReviewSpec: 1 namespace text
TokenReview: 1 metadata ObjectMeta, 2 spec TokenReviewSpec, 3 status skip
TokenReviewSpec: 1 token text, 2 audiences *text
TokenRequest: 1 metadata ObjectMeta, 2 spec TokenRequestSpec, 3 status skip
TokenRequestSpec: 1 audiences *text, 4 expirationSeconds ?int
Binding: 1 metadata ObjectMeta, 2 target ObjectReference
ObjectReference: 1 kind text, 2 namespace text, 3 name text, 4 uid text, 5 apiVersion text
ObjectReference: 6 resourceVersion text, 7 fieldPath text
Lease: 1 metadata ObjectMeta, 2 spec LeaseSpec
LeaseSpec: 1 holderIdentity ?text, 2 leaseDurationSeconds ?int, 3 acquireTime MicroTime, 4 renewTime MicroTime
LeaseSpec: 5 leaseTransitions ?int, 6 strategy text, 7 preferredHolder text
Event: 1 metadata ObjectMeta, 2 involvedObject ObjectReference, 3 reason text, 4 message text
Event: 5 source EventSource, 6 firstTimestamp Time, 7 lastTimestamp Time, 8 count int, 9 type text
Event: 10 eventTime MicroTime, 11 series EventSeries, 12 action text, 13 related ObjectReference
Event: 14 reportingComponent text, 15 reportingInstance text
Event.events.k8s.io: 1 metadata ObjectMeta, 2 eventTime MicroTime, 3 series EventSeries
Event.events.k8s.io: 4 reportingController text, 5 reportingInstance text, 6 action text, 7 reason text
Event.events.k8s.io: 8 regarding ObjectReference, 9 related ObjectReference, 10 note text, 11 type text
Event.events.k8s.io: 12 deprecatedSource EventSource, 13 deprecatedFirstTimestamp Time
Event.events.k8s.io: 14 deprecatedLastTimestamp Time, 15 deprecatedCount int
EventSeries: 1 count int, 2 lastObservedTime MicroTime
EventSource: 1 component text, 2 host text
"""


class Field(msgspec.Struct, frozen=True):
    """One field of a message."""

    name: str
    type: str
    repeated: bool = False
    mapped: bool = False
    keeps_zero: bool = False


def _field(name: str, type: str) -> Field:
    mapped = type.startswith("{")
    return Field(name, type.strip("{}*?"), type.startswith("*"), mapped, type.startswith("?"))


def _read() -> dict[str, dict[int, Field]]:
    messages: dict[str, dict[int, Field]] = {}
    for line in _LINES.strip().splitlines():
        message, _, listed = line.partition(": ")
        for entry in listed.split(", "):
            number, name, type = entry.split(" ")
            messages.setdefault(message, {})[int(number)] = _field(name, type)
    return messages


MESSAGES: Mapping[str, Mapping[int, Field]] = _read()
