"""The pod of a template: what every one has, what options and claims add."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from longshore_sandbox_scheduler.domain.model import Image, Limits, Network, NetworkClass, Sidecar, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag
from longshore_sandbox_scheduler.runtimes.pod.compose import parse
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import PodOptions, claim_annotations, pod_of
from longshore_sandbox_scheduler.runtimes.pod.pod_view import pod_view

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
PLACE = Placement("sandboxes", "r1", OWNER)
OPTIONS = PodOptions(agent_image="agent:1", agent_public_key="a2V5")
IMAGE = Image("sha256:1", workdir="/app", user="alice", env={"A": "own", "HTTP_PROXY": "mine"}, reference="task:1")
LIMITS = Limits(cpus=1.5, memory_mb=512, storage_mb=1024, max_processes=100, max_file_mb=64)
TAG = ClaimTag("run", "attempt", "sha256:t", "key", 60.0)


def made(
    image: Image = IMAGE,
    network: Network = Network(),
    options: PodOptions = OPTIONS,
    claimed: bool = True,
    **more: Any,
) -> dict[str, Any]:
    claim = claim_annotations(TAG, 1000.4) if claimed else None
    deadline = 60 if claimed else 0
    template, env = Template(image, LIMITS, network), more.pop("env", {})
    return pod_of("sb-1", template, PLACE, "no-network", env, options, claim, deadline, **more)


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_a_claimed_pod_ends_by_itself_and_a_warm_one_does_not() -> None:
    claimed, warm = made(), made(claimed=False)
    assert claimed["spec"]["activeDeadlineSeconds"] == 60
    # It can only be lowered later, so a warm pod has none.
    assert "activeDeadlineSeconds" not in warm["spec"]
    assert claimed["metadata"]["labels"]["longshore.dev/state"] == "claimed"
    assert warm["metadata"]["labels"]["longshore.dev/state"] == "warm"
    assert claimed["metadata"]["annotations"] == {
        "longshore.dev/run": "run",
        "longshore.dev/attempt": "attempt",
        "longshore.dev/task": "sha256:t",
        "longshore.dev/claim-key": "key",
        "longshore.dev/claimed-at": "1000",
    }
    # A claim patches key by key, which needs the map to be there.
    assert warm["metadata"]["annotations"]


def test_two_sandboxes_of_one_template_differ_in_their_name_only() -> None:
    one, other = made(claimed=False), made(claimed=False)
    other["metadata"]["name"] = one["metadata"]["name"]
    assert one == other


def test_what_every_pod_has() -> None:
    pod = made()
    spec, metadata = pod["spec"], pod["metadata"]
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["terminationGracePeriodSeconds"] == 1
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert metadata["ownerReferences"] == [OWNER]
    assert metadata["namespace"] == "sandboxes"
    assert metadata["labels"]["longshore.dev/release"] == "r1"
    assert metadata["labels"]["longshore.dev/network"] == "no-network"
    for absent in ("hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "runtimeClassName", "hostUsers"):
        assert absent not in spec
    security = main_of(pod)["securityContext"]
    assert security["capabilities"]["drop"] == ["ALL"]
    assert not {"SYS_ADMIN", "SYS_PTRACE", "NET_RAW", "NET_ADMIN", "MKNOD", "SYS_MODULE"} & {
        *security["capabilities"]["add"]
    }
    assert security["privileged"] is False


def test_limits_are_the_templates_and_requests_a_fraction_of_them() -> None:
    options = PodOptions(agent_image="a", agent_public_key="k", cpu_request=0.5, memory_request=0.25)
    resources = main_of(made(options=options))["resources"]
    assert resources["limits"] == {"cpu": "1500m", "memory": "512Mi", "ephemeral-storage": "1024Mi"}
    assert resources["requests"] == {"cpu": "750m", "memory": "128Mi", "ephemeral-storage": "1024Mi"}
    assert main_of(made())["resources"]["requests"] == main_of(made())["resources"]["limits"]


def test_the_agent_comes_by_an_init_container_and_its_folder_is_read_only_for_the_task() -> None:
    pod = made()
    (install,) = pod["spec"]["initContainers"]
    assert install["image"] == "agent:1"
    assert install["command"][1] == "install"
    mount = main_of(pod)["volumeMounts"][0]
    assert mount["readOnly"] is True
    assert install["command"][2].startswith(mount["mountPath"])
    assert main_of(pod)["command"] == [install["command"][2], "serve"]
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == mount["name"])
    assert volume["emptyDir"]["sizeLimit"]


def test_the_agent_comes_by_an_image_volume_where_that_is_chosen() -> None:
    pod = made(options=PodOptions(agent_image="agent:1", agent_public_key="k", agent_by_image_volume=True))
    assert pod["spec"]["initContainers"] == []
    assert pod["spec"]["volumes"][0]["image"]["reference"] == "agent:1"


def test_no_secret_is_in_the_pod_and_the_agent_learns_who_it_is_from_the_cluster() -> None:
    env = env_of(main_of(made()))
    assert env["LONGSHORE_AGENT_PUBLIC_KEY"] == "a2V5"
    assert env["LONGSHORE_AGENT_SANDBOX_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert env["LONGSHORE_AGENT_INSTANCE"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert (env["LONGSHORE_AGENT_WORKDIR"], env["LONGSHORE_AGENT_USER"]) == ("/app", "alice")
    assert (env["LONGSHORE_AGENT_MAX_PROCESSES"], env["LONGSHORE_AGENT_MAX_FILE_MB"]) == ("100", "64")


def test_the_tasks_own_variables_win_over_the_proxys_and_none_over_the_agents() -> None:
    image = Image("d", env={"HTTP_PROXY": "mine", "LONGSHORE_AGENT_PUBLIC_KEY": "forged"}, reference="t")
    env = env_of(main_of(made(image, env={"HTTP_PROXY": "proxy", "HTTPS_PROXY": "proxy"})))
    assert env["HTTP_PROXY"] == "mine"
    assert env["HTTPS_PROXY"] == "proxy"
    assert env["LONGSHORE_AGENT_PUBLIC_KEY"] == "a2V5"
    names = [one["name"] for one in main_of(made(image))["env"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", [NetworkClass.NO_NETWORK, NetworkClass.GATEWAY_ONLY])
def test_who_may_ask_no_name_server_is_told_of_none(kind: NetworkClass) -> None:
    spec = made(network=Network(kind))["spec"]
    assert spec["dnsPolicy"] == "None"
    # The API needs one; nothing listens there.
    assert spec["dnsConfig"]["nameservers"] == ["127.0.0.1"]


def test_options_of_the_operator_are_added_and_cannot_undo_what_holds_a_pod() -> None:
    options = PodOptions(
        agent_image="a",
        agent_public_key="k",
        runtime_class="gvisor",
        host_users=False,
        pod={"nodeSelector": {"pool": "sandboxes"}, "automountServiceAccountToken": True, "restartPolicy": "Always"},
        labels={"team": "x", "longshore.dev/state": "warm"},
    )
    pod = made(options=options)
    assert pod["spec"]["nodeSelector"] == {"pool": "sandboxes"}
    assert pod["spec"]["runtimeClassName"] == "gvisor"
    assert pod["spec"]["hostUsers"] is False
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"]["longshore.dev/state"] == "claimed"


COMPOSED = """
services:
  main: {image: m, volumes: ["data:/in:ro"]}
  db: {image: "db:1", volumes: ["data:/out"], user: "7", hostname: database, healthcheck: {test: ok}, shm_size: 64m}
  seed: {image: "seed:1"}
  web: {image: "web:1", depends_on: {seed: {condition: service_completed_successfully}, db: {}}}
"""


def composed() -> dict[str, Any]:
    return made(Image("d", reference="m", sidecars=parse(COMPOSED).sidecars))


def test_sidecars_are_native_in_their_order_and_run_once_ones_run_to_their_end() -> None:
    install, *sidecars = composed()["spec"]["initContainers"]
    assert [(one["name"], one.get("restartPolicy")) for one in sidecars] == [
        ("db", "Always"),
        ("seed", None),
        ("web", "Always"),
    ]
    assert install["name"] not in {"main", "db", "seed", "web"}
    db = sidecars[0]
    assert db["securityContext"]["runAsUser"] == 7
    assert db["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert db["startupProbe"]["exec"]["command"] == ["/bin/sh", "-c", "ok"]
    assert not {"once", "aliases", "volumes"} & {key for one in sidecars for key in one}


def test_sidecars_share_volumes_and_find_each_other_by_name_but_see_nothing_of_the_agent() -> None:
    spec = composed()["spec"]
    main, db = spec["containers"][0], spec["initContainers"][1]
    assert {"name": "shared-data", "mountPath": "/in", "readOnly": True} in main["volumeMounts"]
    assert {"name": "shared-data", "mountPath": "/out"} in db["volumeMounts"]
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert volumes["shared-data"]["emptyDir"] == {}
    assert volumes["shared-db-dev-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Mi"}
    assert spec["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": ["main", "database", "db", "seed", "web"]}]
    assert not [one for one in db["volumeMounts"] if "longshore" in one["name"]]
    assert "hostAliases" not in made()["spec"]


def test_the_key_of_a_template_tells_its_sidecars_apart() -> None:
    keys = {
        Template(Image("d", reference="m", sidecars=sidecars), LIMITS).key
        for sidecars in (
            (),
            (Sidecar("db", "db:1"),),
            (Sidecar("db", "db:2"),),
            (Sidecar("db", "db:1", {"args": ["x"]}),),
        )
    }
    assert len(keys) == 4


def test_the_view_of_a_pod_is_small_and_keeps_what_is_read() -> None:
    pod = made()
    pod["metadata"] |= {"uid": "u", "resourceVersion": "1", "managedFields": [{"manager": "x"}]}
    pod["spec"]["nodeName"] = "n"
    pod["status"] = {
        "phase": "Running",
        "podIP": "1.2.3.4",
        "qosClass": "Burstable",
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}],
        "containerStatuses": [{"name": "main", "state": {"running": {}}, "resources": {}, "volumeMounts": []}],
    }
    shown = pod_view(pod)
    assert len(yaml.safe_dump(shown)) < len(yaml.safe_dump(pod)) / 2
    assert shown["metadata"]["labels"] == pod["metadata"]["labels"]
    assert shown["spec"] == {"nodeName": "n", "activeDeadlineSeconds": 60}
    assert shown["status"]["containerStatuses"] == [{"name": "main", "state": {"running": {}}}]
    assert "managedFields" not in shown["metadata"]
