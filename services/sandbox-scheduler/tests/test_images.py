"""Images: what a Dockerfile makes, the cache, the digest of what is mounted."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import pytest
from scheduler_world import World, start_world

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common.agent_client import AgentClient
from longshore_common.errors import InvalidSpec, NotFound


async def _prepare(world: World, task: str) -> sandbox_pb2.PrepareImageResponse:
    answer: sandbox_pb2.PrepareImageResponse = await world.scheduler.PrepareImage(
        sandbox_pb2.PrepareImageRequest(task_digest=task)
    )
    return answer


async def _shell(agent: AgentClient, script: str) -> str:
    result = await agent.exec(["sh", "-c", script], timeout_s=10)
    assert result.exit_code == 0, result.stderr.head
    return result.stdout.head.decode()


async def test_copy_files_folders_globs_modes_and_links(world: World) -> None:
    dockerfile = (
        "FROM longshore/base\nWORKDIR /app\nCOPY files/ /app/\nCOPY --chmod=700 files/a.txt /app/secret\n"
        "COPY files/*.txt /texts/\nCOPY tool.sh /bin/tool\nCOPY files/a.txt /opt\n"
    )
    task = world.catalog.add(
        {
            "environment/Dockerfile": dockerfile,
            "environment/files/a.txt": "A",
            "environment/files/b.txt": "B",
            "environment/files/deep/c": "C",
            "environment/tool.sh": "#!/bin/sh\necho tool\n",
        }
    )
    agent = world.agent(await world.claim(task))
    assert await _shell(agent, "find . | sort; ls /texts /opt") == (
        ".\n./a.txt\n./b.txt\n./deep\n./deep/c\n./secret\n/opt:\na.txt\n\n/texts:\na.txt\nb.txt\n"
    )
    assert await _shell(agent, "stat -c '%a %U' secret a.txt; tool; ls -ld /bin | cut -c1; ls /usr/bin/tool") == (
        "700 root\n644 root\ntool\nl\n/usr/bin/tool\n"
    )


async def test_run_user_env_and_copy_after_run(world: World) -> None:
    dockerfile = (
        "FROM longshore/base\nARG WHO=me\nENV GREETING=hi\nWORKDIR /app\n"
        "RUN echo $GREETING $WHO > made && rm /etc/hosts\n"
        'RUN ["sh", "-c", "echo exec > form"]\nCOPY late/ /app/late/\n'
        "RUN cat late/f >> made\nRUN mkdir -p /x && rm -r /home\n"
    )
    task = world.catalog.add({"environment/Dockerfile": dockerfile, "environment/late/f": "late\n"})
    first, second = await world.claim(task), await world.claim(task)
    for claimed in (first, second):
        agent = world.agent(claimed)
        assert await _shell(agent, "cat made form; ls -d /x; ls -d /home /etc/hosts 2>/dev/null | wc -l") == (
            "hi me\nlate\nexec\n/x\n0\n"
        )
        await agent.exec(["sh", "-c", "rm -rf /app /usr; true"], timeout_s=10)
    assert first.sandbox.image_digest == second.sandbox.image_digest


async def test_run_has_no_network_and_its_failure_names_the_line(world: World) -> None:
    task = world.catalog.dockerfile("FROM longshore/base\n\nRUN echo before; bash -c 'exec 3<>/dev/tcp/1.1.1.1/80'\n")
    with pytest.raises(InvalidSpec, match=r"(?s)Dockerfile:3: RUN exited with 1: before.*unreachable") as caught:
        await world.claim(task)
    assert caught.value.field == "environment/Dockerfile:3"
    assert not list(Path(world.settings.cache_dir, "layers").glob(".tmp-*"))


async def test_run_timeout(world: World) -> None:
    task = world.catalog.dockerfile("FROM longshore/base\nRUN sleep 60\n", build_timeout_s=0.3)
    with pytest.raises(InvalidSpec, match="Dockerfile:2: RUN did not end"):
        await world.claim(task)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM debian:bookworm\n", "Dockerfile:1: FROM debian:bookworm: no such local base"),
        ("FROM longshore/base\nCOPY absent /x\n", "Dockerfile:2: COPY: absent matches nothing"),
        ("FROM longshore/base\nCOPY Dockerfile /etc/passwd/x\n", "Dockerfile:2: /etc/passwd is a file"),
        ("FROM longshore/base\nCOPY ../x /x\n", "Dockerfile:2: COPY: ../x leaves"),
        ("FROM longshore/base\r\n", "Dockerfile:1: CRLF"),
        (b"FROM longshore/base\nENV A=\xff\n", "not UTF-8"),
    ],
)
async def test_refusals_name_the_line(world: World, text: str | bytes, message: str) -> None:
    task = world.catalog.dockerfile(text)
    for _ in range(2):
        with pytest.raises(InvalidSpec, match=message):
            await _prepare(world, task)


async def test_tasks_that_need_other_runtimes_are_refused(world: World) -> None:
    for files, message in (
        ({"environment/docker-compose.yaml": "x"}, "several containers"),
        ({"environment/.dockerignore": "x", "environment/Dockerfile": "FROM longshore/base"}, "dockerignore"),
        ({"instruction.md": "x"}, "neither environment/Dockerfile"),
    ):
        with pytest.raises(InvalidSpec, match=message):
            await _prepare(world, world.catalog.add(files))
    with pytest.raises(NotFound):
        await _prepare(world, "sha256:absent")
    with pytest.raises(InvalidSpec, match="task_digest"):
        await _prepare(world, "")


async def test_docker_image_instead_of_a_dockerfile(world: World) -> None:
    task = world.catalog.add({"task.toml": '[environment]\ndocker_image = "longshore/base:latest"\n'})
    assert await _shell(world.agent(await world.claim(task)), "echo works") == "works\n"


async def test_digest_is_of_content_and_cache_survives_the_process(tmp_path: Path, cache_dir: Path) -> None:
    def add(world: World, content: str, extra: str = "") -> str:
        dockerfile = f"FROM longshore/base\n{extra}WORKDIR /app\nCOPY f /app/f\n"
        return world.catalog.add({"environment/Dockerfile": dockerfile, "environment/f": content})

    salt = secrets.token_hex(8)
    async with start_world(tmp_path / "one", cache_dir) as world:
        one, other = await _prepare(world, add(world, salt)), await _prepare(world, add(world, salt + "x"))
        same_tree = await _prepare(world, add(world, salt, "# only a comment\n"))
        assert one.built
        assert one.image_digest != other.image_digest
        assert one.image_digest == same_tree.image_digest
        assert not (await _prepare(world, add(world, salt))).built
    async with start_world(tmp_path / "two", cache_dir) as world:
        again = await _prepare(world, add(world, salt))
        assert (again.built, again.image_digest) == (False, one.image_digest)
        assert world.catalog.bundle_calls == 0


async def test_concurrent_builders_of_two_processes_agree(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    async with start_world(tmp_path / "one", cache) as one, start_world(tmp_path / "two", cache) as two:
        tasks = [world.catalog.dockerfile("FROM longshore/base\nRUN echo x > /x\n") for world in (one, two)]
        answers = await asyncio.gather(
            *(_prepare(world, task) for world, task in zip((one, two, one, two), tasks * 2, strict=True))
        )
        assert len({answer.image_digest for answer in answers}) == 1
        assert await _shell(two.agent(await two.claim(tasks[1])), "cat /x") == "x\n"
        assert len(list((cache / "bases").iterdir())) == 1
        assert len(list((cache / "layers").iterdir())) == 1


async def test_base_holds_no_host_secret_and_no_set_uid(world: World) -> None:
    await _prepare(world, world.catalog.dockerfile("FROM longshore/base\n"))
    for base in Path(world.settings.cache_dir, "bases").glob("*/tree"):
        assert not (base / "etc/shadow").exists()
        assert not [path for path in base.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o6000]
        recipe = json.loads((base.parent / "meta.json").read_text())["recipe"]
        assert recipe["programs"]


async def test_python_base(world: World) -> None:
    agent = await world.sandbox("FROM longshore/base-python\n")
    script = "import json, hashlib, sqlite3, sys; print(json.dumps([1]), hashlib.md5(b'').hexdigest()[:4])"
    result = await agent.exec(["python3", "-c", script], timeout_s=20)
    assert result.stdout.head == b"[1] d41d\n", result.stderr.head
