"""From report.json to what the template shows.

Called by `render`. Tolerant on purpose: a report of a run that is still going on lacks panels, checks or steps, and an
older report lacks newer keys; what is missing is left out of the page, never shown as zero.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from longshore_cli.report import charts
from longshore_cli.report.figures import figures, step_seconds

Json = dict[str, Any]

NOT_SHOWN = (
    "That the policy would do better on tasks of another kind: test tasks share skills with training tasks, and differ "
    "in content only.",
    "That another seed gives the same: this is one run with one seed.",
    "Anything about larger models, GPUs or a cluster: see the evidence line for what this ran on.",
    "Capability by training reward: the verdict rests on the paired test split alone; training curves are shown to "
    "explain it.",
)


def build_view(report: Json) -> Json:
    """The template's context. Needs no key to be present; wrong types raise TypeError or ValueError."""
    panels = [_panel(p) for p in _list(report, "panels")]
    steps = _list(report, "steps")
    return {
        "run": _run(report),
        "verdict": _verdict(report, panels),
        "tiles": _tiles(report, panels),
        "panels": panels,
        "figures": [f for f in figures(report) if f["svg"]],
        "accounts": _accounts(report),
        "versions": _versions(report),
        "capture": _capture(report),
        "tasks": _tasks(report),
        "digests": _digests(report),
        "not_shown": list(NOT_SHOWN) + [str(x) for x in _list(report, "not_shown")],
        "steps": [_step_row(s) for s in steps],
    }


def _list(value: Json, key: str) -> list[Any]:
    found = value.get(key)
    return list(found) if isinstance(found, list | tuple) else []


def _dict(value: Json, key: str) -> Json:
    found = value.get(key)
    return dict(found) if isinstance(found, dict) else {}


def p_text(p: float | None) -> str:
    """A p value for people; small ones in scientific notation."""
    if p is None:
        return "–"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def duration(total_s: float | None) -> str:
    if total_s is None:
        return "–"
    minutes, rest = divmod(round(total_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _moment(at_ms: Any) -> str:
    return datetime.fromtimestamp(float(at_ms) / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC") if at_ms else ""


def _run(report: Json) -> Json:
    run = report.get("run")
    one: Json = dict(run) if isinstance(run, dict) else {"run_id": str(run or "")}
    evidence = report.get("evidence")
    if isinstance(evidence, dict):
        evidence = " on ".join(str(v) for v in (evidence.get("shown"), evidence.get("on")) if v)
    return {
        "id": one.get("run_id") or one.get("id") or "",
        "name": one.get("name") or report.get("name") or "run",
        "state": str(one.get("state") or report.get("state") or "").removeprefix("RUN_STATE_").lower(),
        "seed": one.get("seed", report.get("seed")),
        "started": _moment(one.get("created_at_ms") or report.get("created_at_ms")),
        "finished": _moment(one.get("finished_at_ms") or report.get("finished_at_ms")),
        "evidence": evidence or "",
        "wall": duration(report.get("wall_s")),
    }


def headline_panel(panels: list[Json]) -> Json | None:
    """The panel that the verdict is about: the one named test, else the first."""
    return next((p for p in panels if str(p["name"]).startswith("test")), panels[0] if panels else None)


def paired_interval(wins: int, losses: int, n: int) -> tuple[float, float]:
    """Normal-approximation 95% interval of the paired difference of two rates."""
    difference = (wins - losses) / n
    spread = math.sqrt(max(wins + losses - (wins - losses) ** 2 / n, 0.0)) / n
    return max(-1.0, difference - 1.96 * spread), min(1.0, difference + 1.96 * spread)


def _interval(panel: Json, n: int) -> tuple[tuple[float, float] | None, bool]:
    """The report's own interval, or an approximate one; the flag says approximate."""
    found = panel.get("interval")
    if isinstance(found, list | tuple) and len(found) == 2 and None not in found:
        return (float(found[0]), float(found[1])), False
    if n and panel.get("wins") is not None and panel.get("losses") is not None:
        return paired_interval(int(panel["wins"]), int(panel["losses"]), n), True
    return None, False


def _side(panel: Json, key: str) -> Json:
    side = _dict(panel, key)
    solved, rate, n = side.get("solved"), side.get("rate"), panel.get("n") or 0
    if rate is None and solved is not None and n:
        rate = solved / n
    scored = side.get("scored_rate")
    return {
        "solved": solved,
        "attempts": side.get("attempts", n),
        "rate": rate,
        "text": charts.percent(rate) if rate is not None else "–",
        "absent": side.get("absent") or 0,
        "scored_text": charts.percent(scored) if scored is not None else "–",
        "turns": charts.number(side["turns_mean"]) if side.get("turns_mean") is not None else "–",
        "tokens": f"{side['completion_tokens']:,}" if side.get("completion_tokens") is not None else "–",
        "agent_s": charts.seconds(side["agent_s"]) if side.get("agent_s") is not None else "–",
        "top_share": charts.percent(side["top_task_share"]) if side.get("top_task_share") is not None else "–",
        "pass_at_k": sorted(_dict(side, "pass_at_k").items(), key=lambda kv: int(kv[0])),
        "endings": _ranked(side, "endings"),
    }


def _panel(panel: Json) -> Json:
    n = int(panel.get("n") or 0)
    base, final = _side(panel, "base"), _side(panel, "final")
    interval, approximate = _interval(panel, n)
    difference = None
    if base["rate"] is not None and final["rate"] is not None:
        difference = final["rate"] - base["rate"]
    strip = charts.interval_strip(*interval, difference) if interval and difference is not None else ""
    pair = charts.rate_pair(base["rate"], final["rate"]) if difference is not None else ""
    return {
        "name": panel.get("name", ""),
        "n": n,
        "base": base,
        "final": final,
        "wins": panel.get("wins"),
        "ties": panel.get("ties"),
        "losses": panel.get("losses"),
        "samples": panel.get("samples") or 1,
        "test": "sign test" if panel.get("test") == "sign_test" else "exact McNemar",
        "p_text": p_text(
            panel.get("mcnemar_p", panel.get("p_value")) if panel.get("test") != "sign_test" else panel.get("p_value")
        ),
        "difference": difference,
        "difference_text": f"{difference * 100:+.1f}" if difference is not None else "–",
        "interval_text": f"{interval[0] * 100:+.1f} to {interval[1] * 100:+.1f}" if interval else "–",
        "approximate": approximate,
        "strip": strip,
        "pair": pair,
        "tokens_ratio": _ratio(panel.get("tokens_ratio")),
        "time_ratio": _ratio(panel.get("time_ratio")),
    }


def _ratio(value: Any) -> str:
    return f"{float(value):.2f}×" if value is not None else "–"


_VERDICTS = {
    "improved": ("good", "Improved"),
    "worse": ("bad", "Got worse"),
    "no_difference": ("flat", "No difference"),
    "inconclusive": ("flat", "Inconclusive"),
}


def _verdict(report: Json, panels: list[Json]) -> Json:
    decision = _dict(report, "decision")
    word = str(report.get("verdict") or decision.get("verdict") or "").lower()
    tone, label = _VERDICTS.get(word, ("flat", word.replace("_", " ").capitalize() or "No verdict yet"))
    panel = headline_panel(panels)
    return {
        "word": word,
        "tone": tone,
        "label": label,
        "numbers": verdict_numbers(panel) if panel else "",
        "rule": decision.get("rule") or "",
        "note": decision.get("note") or "",
    }


def verdict_numbers(panel: Json) -> str:
    """The headline's numbers in one line."""
    return (
        f"{str(panel['name']).capitalize()} split, {panel['n']} tasks: "
        f"{panel['base']['text']} → {panel['final']['text']} solved "
        f"({panel['difference_text']} points, 95% interval {panel['interval_text']}); "
        f"{panel['wins']} wins, {panel['ties']} ties, {panel['losses']} losses; {panel['test']} p = {panel['p_text']}"
    )


def _tiles(report: Json, panels: list[Json]) -> list[Json]:
    tiles: list[Json] = []
    panel = headline_panel(panels)
    if panel and panel["difference"] is not None:
        before = f"{panel['base']['text']} → {panel['final']['text']}"
        tiles.append({"value": before, "label": f"solved on {panel['name']} ({panel['n']} tasks)"})
        tiles.append({"value": f"{panel['difference_text']} pts", "label": f"95% interval {panel['interval_text']}"})
        tiles.append({"value": panel["p_text"], "label": f"p, {panel['test']}, two-sided"})
    steps = _list(report, "steps")
    if steps:
        tokens = sum(int(s.get("tokens") or 0) for s in steps)
        tiles.append({"value": str(len(steps)), "label": f"training steps, {tokens:,} tokens"})
    if report.get("wall_s") is not None:
        tiles.append({"value": duration(report["wall_s"]), "label": "wall time"})
    return tiles


def _accounts(report: Json) -> list[Json]:
    """One equation per purpose: training and evaluation attempts are counted apart."""
    rows = [("Training", _dict(report, "attempts")), ("Evaluation", _dict(report, "evaluation_attempts"))]
    return [_account(name, counts) for name, counts in rows if counts.get("planned") is not None]


def _account(name: str, counts: Json) -> Json:
    value = {k: int(counts.get(k) or 0) for k in ("planned", "refilled", "scored", "failed", "discarded", "open")}
    left = value["planned"] + value["refilled"]
    right = value["scored"] + value["failed"] + value["discarded"] + value["open"]
    shares = [(k, value[k], 100 * value[k] / right) for k in ("scored", "failed", "discarded", "open") if value[k]]
    return {
        "name": name,
        **value,
        "retried": int(counts.get("retried") or 0),
        "left": left,
        "right": right,
        "balanced": left == right,
        "shares": shares if right else [],
        "by_termination": _ranked(counts, "by_termination"),
        "by_failure": _ranked(counts, "by_failure"),
        "by_discard": _ranked(counts, "by_discard"),
    }


def _ranked(counts: Json, key: str) -> list[tuple[str, int]]:
    found = _dict(counts, key)
    return sorted(((str(k), int(v)) for k, v in found.items() if v), key=lambda kv: (-kv[1], kv[0]))


def _versions(report: Json) -> list[Json]:
    rows = []
    for one in _list(_dict(report, "policy"), "versions"):
        row = dict(one) if isinstance(one, dict) else {"version": one}
        row["published"] = _moment(row.get("published_at_ms"))
        rows.append(row)
    return rows


def _capture(report: Json) -> Json | None:
    found = _dict(report, "capture_check")
    if not found:
        return None
    simple = [(k.replace("_", " "), v) for k, v in found.items() if k != "ok" and not isinstance(v, dict | list)]
    versions = [dict(v) for v in _list(found, "by_version") if isinstance(v, dict)]
    problems = [str(p) for p in _list(found, "problems")]
    return {"ok": found.get("ok"), "rows": simple, "versions": versions, "problems": problems}


def _tasks(report: Json) -> Json:
    tasks = _dict(report, "tasks")
    skills = _dict(tasks, "skills")
    by_skill = _dict(skills, "by_skill")
    return {
        "counts": [(k, tasks[k]) for k in ("train", "dev", "test") if tasks.get(k) is not None],
        "skills": [{"skill": name, **counts} for name, counts in sorted(by_skill.items()) if isinstance(counts, dict)],
        "overlap": _overlap(skills),
        "excluded": _list(tasks, "excluded"),
    }


def _overlap(skills: Json) -> str:
    trained, new = skills.get("test_tasks_with_trained_skill"), skills.get("test_tasks_with_new_skill")
    unknown = skills.get("test_tasks_without_skill") or 0
    if trained is None and new is None:
        return ""
    text = f"{trained or 0} test tasks have a skill that also occurs in training, {new or 0} have a new one"
    text += f", {unknown} name none" if unknown else ""
    return f"{text}: this measures new contents{'' if new else ', not new skills'}."


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for k, v in value.items() for row in _flat(f"{prefix} {k}".strip(), v)]
    return [(prefix.replace("_", " "), value)] if isinstance(value, str) and value.startswith("sha256:") else []


def _digests(report: Json) -> list[tuple[str, str]]:
    """Every named digest of the report, apart from the lists of single tasks and the policy versions."""
    run = report.get("run")
    found = _flat("", dict(run)) if isinstance(run, dict) else []
    found += _flat("", {k: v for k, v in report.items() if k.endswith("_digest")})
    found += _flat("", _dict(report, "digests"))
    found += _flat("policy", {k: v for k, v in _dict(report, "policy").items() if k != "versions"})
    found += _flat("", {k: v for k, v in _dict(report, "tasks").items() if isinstance(v, str)})
    seen: dict[str, str] = {}
    for name, digest in found:
        seen.setdefault(name, digest)
    return list(seen.items())


def _step_row(step: Json) -> Json:
    def show(key: str, form: charts.Format) -> str:
        return form(float(step[key])) if step.get(key) is not None else "–"

    return {
        "step": step.get("step"),
        "reward": show("reward_mean", charts.number),
        "solve": show("solve_rate", charts.percent),
        "loss": show("loss", charts.number),
        "entropy": show("entropy", charts.number),
        "kl": show("kl", charts.number),
        "mismatch": show("mismatch_kl", charts.number),
        "clip": show("clip_fraction", charts.percent_fine),
        "tokens": show("tokens", charts.number),
        "zero": show("zero_variance_groups", charts.number),
        "seconds": charts.seconds(sum(step_seconds(step).values())),
    }
