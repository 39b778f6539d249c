#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""alerts.py FILE: writes unit tests of deploy/alerts.yml for promtool, which reads JSON as YAML.

Two nodes, a and b, hold the model m; a coordinates, and each trains one rank. Where nothing is
wrong no alert fires. Each fault is a few series that differ from that: the right alert fires, once,
however many nodes tell of it, and no other one does. An alert without a fault is an error, and so
is a runbook_url that is not the alert's own heading in deploy/README.md.
"""
import json
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
RUNBOOK = "file:///usr/share/doc/shardd/deploy/README.md#"
MINUTES = 80
MODEL = {"job": "shardd", "model": "m"}
NODE_B = {"job": "shardd", "instance": "b"}
JOB = {"job": "shardd"}


def const(value):
    return f"{value}x{MINUTES}"


def turns(before, after, at=10):
    """The value from the minute `at` on is another one."""
    return f"{before}x{at - 1} {after}x{MINUTES}"


def key(metric, instance, **labels):
    pairs = {"job": "shardd", "instance": instance, **labels}
    return metric + "{" + ", ".join(f'{k}="{v}"' for k, v in pairs.items()) + "}"


def both(metric, values, **labels):
    return {key(metric, node, **labels): values for node in "ab"}


STATES = ("lost", "paused", "diverged", "waiting", "recovering", "training")
OF_NODE = {
    "up": const(1), "shardd_starts_total": const(3), "shardd_auth_refused_total": const(0),
    "shardd_refused_frames_total": const(0), "shardd_config_last_reload_successful": const(1),
    "shardd_budget_bytes": const(100), "shardd_budget_used_bytes": const(90),
    "shardd_tls_cert_expiry_timestamp_seconds": const(90 * 86400),
}
OF_MODEL = {
    "shardd_step": const("100+60"), "shardd_model_generation": const(2),
    "shardd_rollbacks_total": const(0), "shardd_model_copies_least": const(2),
    "shardd_model_copies_wanted": const(2), "shardd_model_copies_min": const(1),
    "shardd_attempts_ended_total": const(0), "shardd_gradients_differ_total": const(0),
    "shardd_kept_elements_total": const(0), "shardd_step_seconds_sum": const("0+30"),
    "shardd_step_seconds_count": const("0+60"), "shardd_moving_bytes": const(0),
}
OF_COORDINATOR = {
    "shardd_joined": const(2), "shardd_move_age_seconds": const(0),
    "shardd_votes_differ_total": const(0), "shardd_checkpoint_every_steps": const(100),
    "shardd_checkpoint_last_step": const("100+60"), "shardd_checkpoint_failures_total": const(0),
    "shardd_checkpoint_copy_failures_total": const(0),
}


def healthy():
    series = {}
    for node, other in ("ab", "ba"):
        for metric, values in OF_NODE.items():
            series[key(metric, node)] = values
        for metric, values in OF_MODEL.items():
            series[key(metric, node, model="m")] = values
        for metric, values in OF_COORDINATOR.items() if node == "a" else ():
            series[key(metric, node, model="m")] = values
        for state in STATES:
            series[key("shardd_model_state", node, model="m", state=state)] = \
                const(int(state == "training"))
        for level in ("ok", "warn", "ill"):
            series[key("shardd_health", node, level=level)] = const(int(level == "ok"))
        for transport in ("rdma", "tcp"):
            series[key("shardd_transport", node, peer=other, transport=transport)] = \
                const(int(transport == "rdma"))
        series[key("shardd_build_info", node, node=node, release="0.1.0")] = const(1)
        series[key("shardd_coordinator", node)] = const(int(node == "a"))
        series[key("shardd_link_up", node, peer=other)] = const(1)
        series[key("shardd_rdma_failures_total", node, peer=other)] = const(0)
        series[key("shardd_steps_skipped_total", node, model="m", reason="nonfinite")] = \
            const("0+1")
        series[key("shardd_steps_skipped_total", node, model="m", reason="vote")] = const(0)
        series[key("shardd_rank_lag_seconds", node, model="m", rank=int(node == "b"))] = const(0.1)
    return series


HEALTHY = healthy()


def stands(state=None, joined=2):
    """From minute 10 on there is no step, and both nodes say that m is in that state."""
    series = both("shardd_step", "100+60x9 640x80", model="m")
    series[key("shardd_checkpoint_last_step", "a", model="m")] = const(600)
    series[key("shardd_joined", "a", model="m")] = turns(2, joined)
    if state:
        series |= both("shardd_model_state", turns(1, 0), model="m", state="training")
        series |= both("shardd_model_state", turns(0, 1), model="m", state=state)
    return series


def comes_back(state, joined):
    """From minute 10 on nobody trains, and from minute 40 on trainers are there, without a step."""
    series = stands()
    series[key("shardd_joined", "a", model="m")] = f"2x9 0x29 {joined}x80"
    series |= both("shardd_model_state", f"1x9 0x29 {int(state == 'training')}x80", model="m",
                   state="training")
    return series | both("shardd_model_state", f"0x9 1x29 {int(state == 'waiting')}x80", model="m",
                         state="waiting")


def crash_loop():
    """From minute 10 on a trainer comes and dies before the step, every second minute."""
    series = stands()
    series |= both("shardd_model_state", "1x9" + " 0 1" * 35, model="m", state="training")
    series |= both("shardd_model_state", "0x9" + " 1 0" * 35, model="m", state="waiting")
    return series | both("shardd_attempts_ended_total", "0x9" + "".join(
        f" {n} {n} {n}" for n in range(1, 24)), model="m")


def silent(node):
    """From minute 10 on that node is not scraped, so its series end."""
    series = {k: re.sub(r"x\d+$", "x9 stale", v) for k, v in HEALTHY.items()
              if f'instance="{node}"' in k}
    return series | {key("up", node): turns(1, 0)}


ILL = both("shardd_health", turns(0, 1), level="ill") | both("shardd_health", turns(1, 0),
                                                             level="ok")
NO_RDMA = {
    key("shardd_transport", node, peer=other, transport=transport):
    turns(int(transport == "rdma"), int(transport == "tcp"))
    for node, other in ("ab", "ba") for transport in ("rdma", "tcp")
} | {key("shardd_rdma_failures_total", node, peer=other): turns(0, 1)
     for node, other in ("ab", "ba")}

# What is wrong, its series, the alert, when it is still quiet, when it fires, its labels, its text.
FAULTS = [
    ("node b dies, and that a has no link to it is no news",
     silent("b") | {key("shardd_link_up", "a", peer="b"): turns(1, 0)},
     "ShardNodeDown", 10, 20, NODE_B,
     "b does not answer: shardd is down, or its loop is stuck"),
    ("the link between two nodes that run is down at both ends",
     {key("shardd_link_up", "a", peer="b"): turns(1, 0),
      key("shardd_link_up", "b", peer="a"): turns(1, 0)},
     "ShardLinkDown", 10, 20, JOB,
     "nodes that run have no link to each other: a to b, b to a, /healthz says why"),
    ("a rank stands still", stands(), "ShardTrainingStalled", 24, 30, MODEL,
     "model m: no step was decided for 15 minutes; shardctl status says who is waited for"),
    ("a trainer dies in each attempt", crash_loop(), "ShardTrainingStalled", 24, 30, MODEL,
     "model m: no step was decided for 15 minutes; shardctl status says who is waited for"),
    ("the model is not recovered", stands("recovering"), "ShardTrainingStalled", 24, 30, MODEL,
     "model m: no step was decided for 15 minutes; shardctl status says who is waited for"),
    ("trainers come after half an hour without any, and make no step", comes_back("training", 2),
     "ShardTrainingStalled", 52, 58, MODEL,
     "model m: no step was decided for 15 minutes; shardctl status says who is waited for"),
    ("one of two comes after half an hour without any", comes_back("waiting", 1),
     "ShardTrainersMissing", 49, 58, MODEL,
     "model m: no step for 15 minutes, for fewer trainers than min_world have joined"),
    ("they come, and attempts end because more of them join",
     comes_back("training", 2) | both("shardd_attempts_ended_total", "0x39 1 2 3 4x80", model="m"),
     "ShardTrainingStalled", 49, 58, MODEL,
     "model m: no step was decided for 15 minutes; shardctl status says who is waited for"),
    ("one of two trainers does not come back", stands("waiting", joined=1),
     "ShardTrainersMissing", 24, 30, MODEL,
     "model m: no step for 15 minutes, for fewer trainers than min_world have joined"),
    ("the job ends, and nobody drops the model", stands("waiting", joined=0),
     "ShardModelIdle", 39, 45, MODEL,
     "no trainer has been connected to model m for 30 minutes: if its job is over, save the model "
     "and drop it"),
    ("the only copy of a chunk is gone, and there is no checkpoint", stands("lost"),
     "ShardModelLost", 9, 12, MODEL,
     "model m is lost: chunks have no copy left, and no checkpoint brought them back"),
    ("m is lost and restored within milliseconds, so that no scrape sees the state lost",
     both("shardd_rollbacks_total", turns(0, 1), model="m")
     | both("shardd_model_generation", turns(2, 3), model="m"),
     "ShardModelSetBack", 9, 15, MODEL,
     "model m was lost or restored, and goes on from an older step; shardctl status says from "
     "which, and why"),
    ("all nodes lost it and count from 0 again, so that only the generation grows",
     both("shardd_model_generation", turns(2, 3, 20), model="m"),
     "ShardModelSetBack", 19, 25, MODEL,
     "model m was lost or restored, and goes on from an older step; shardctl status says from "
     "which, and why"),
    ("m diverges", stands("diverged"), "ShardModelDiverged", 9, 12, MODEL,
     "model m is paused: too many skipped steps, a loss scale at its floor, or copies that differ"),
    ("an operator pauses m and forgets it", stands("paused"), "ShardModelPaused", 69, 72, MODEL,
     "model m has been paused by an operator for an hour: shardctl model resume m"),
    ("one copy of two is left", both("shardd_model_copies_least", turns(2, 1), model="m"),
     "ShardCopiesMissing", 14, 16, MODEL,
     "model m has chunks with fewer copies than `replicas`: the next loss of a node may lose it"),
    ("there are fewer copies than a step needs, and b does not know it yet",
     both("shardd_model_copies_min", const(2), model="m")
     | {key("shardd_model_copies_least", "a", model="m"): turns(2, 1)},
     "ShardCopiesTooFew", 10, 20, MODEL,
     "model m has chunks with fewer copies than `min_copies`: no step begins until nodes are back"),
    ("chunks come until minute 10, and then the move stands still",
     {key("shardd_move_age_seconds", "a", model="m"): const("0+60"),
      key("shardd_moving_bytes", "b", model="m"): "2000-100x10 1000x80"},
     "ShardMoveStuck", 24, 30, MODEL,
     "chunks of model m have not been where they should lie for 30m 0s, and none came in 15 "
     "minutes; shardctl status says what they wait for"),
    ("votes for m differ once",
     {key("shardd_votes_differ_total", "a", model="m"): turns(0, 1, 11)},
     "ShardVotesDiffer", 9, 20, MODEL,
     "model m: copies of a gradient do not agree, so memory or a processor of a node is bad; "
     "event=votes_differ says of which"),
    ("the node that coordinated is gone, and a follower has seen it",
     {key("shardd_gradients_differ_total", "b", model="m"): turns(0, 3, 11)},
     "ShardVotesDiffer", 9, 20, MODEL,
     "model m: copies of a gradient do not agree, so memory or a processor of a node is bad; "
     "event=votes_differ says of which"),
    ("every other step is skipped",
     both("shardd_steps_skipped_total", const("0+20"), model="m", reason="nonfinite")
     | both("shardd_steps_skipped_total", const("0+10"), model="m", reason="vote"),
     "ShardStepsSkipped", 9, 30, MODEL,
     "more than a fifth of the steps of model m change nothing"),
    ("attempts end again and again",
     both("shardd_attempts_ended_total", turns(0, "0+1"), model="m"),
     "ShardAttemptsEnd", 9, 30, MODEL,
     "attempts at steps of model m end without a decision: trainers or links come and go"),
    ("rank 1 is 0.2 s late in steps of 0.5 s",
     {key("shardd_rank_lag_seconds", "b", model="m", rank=1): const(0.2)},
     "ShardStraggler", 9, 30, MODEL | {"rank": "1"},
     "rank 1 of model m pushes 200ms after the first rank of its node"),
    ("weights on both nodes would not be finite",
     both("shardd_kept_elements_total", turns(0, 5, 11), model="m"),
     "ShardElementsKept", 9, 20, MODEL,
     "model m: new values of weights were not finite and were not taken"),
    ("m is to be saved each 100 steps, and is not from minute 10 on",
     {key("shardd_checkpoint_last_step", "a", model="m"): "100+60x9 640x80"},
     "ShardCheckpointOld", 24, 30, MODEL,
     "model m: three checkpoints in a row were not written; shardctl status says why"),
    ("a save fails",
     {key("shardd_checkpoint_failures_total", "a", model="m"): turns(0, 1, 11)},
     "ShardCheckpointFails", 9, 20, MODEL,
     "model m: a save or restore failed; the older checkpoints are still there"),
    ("a checkpoint is not copied",
     {key("shardd_checkpoint_copy_failures_total", "a", model="m"): turns(0, 1, 11)},
     "ShardCheckpointNotCopied", 9, 20, MODEL,
     "model m: checkpoint_hook failed to copy a checkpoint; shardctl status says why"),
    ("a node with another secret dials both nodes each second",
     both("shardd_auth_refused_total", turns(0, "0+60")),
     "ShardSecretRefused", 9, 30, JOB,
     "somebody who does not know the secret has tried to connect 1.2k times in 10 minutes; "
     "event=auth_refused in the logs says from where"),
    ("somebody speaks another protocol with b",
     {key("shardd_refused_frames_total", "b"): turns(0, 1, 11)},
     "ShardFramesRefused", 9, 15, NODE_B,
     "b refused frames: damage on the way, or somebody speaks another protocol"),
    ("RDMA fails, and both ends go on by TCP", NO_RDMA, "ShardRdmaFellBack", 14, 20, JOB,
     "tensors go by TCP where RDMA failed: a to b, b to a, shardctl status says why"),
    ("b starts again and again", {key("shardd_starts_total", "b"): "3x9 4x4 5x4 6x80"},
     "ShardRestarts", 18, 25, NODE_B, "b has started 3 times within an hour"),
    ("b does not take its configuration",
     {key("shardd_config_last_reload_successful", "b"): turns(1, 0)},
     "ShardReloadFailed", 9, 12, NODE_B,
     "b did not take its configuration, and goes on with the one before; event=reload_failed says "
     "which line is wrong"),
    ("the certificate of b has no month left",
     {key("shardd_tls_cert_expiry_timestamp_seconds", "b"): turns(90 * 86400, 86400 + 600)},
     "ShardCertificateExpires", 9, 10, NODE_B,
     "the certificate of b expires in 1d 0h 0m 0s; afterwards no link and no connection with TLS can "
     "be made"),
    ("b has no memory left", {key("shardd_budget_used_bytes", "b"): turns(90, 96)},
     "ShardBudgetFull", 9, 12, NODE_B, "b has reserved more than 95 % of its memory for models"),
    ("something is wrong that no other alert is about", ILL, "ShardUnhealthy", 19, 25, JOB,
     "a node finds that training stands or state is in danger, and no other alert says why; "
     "shardctl status does"),
    ("something is wrong, and another alert says what", ILL | stands("lost"),
     "ShardModelLost", 9, 30, MODEL,
     "model m is lost: chunks have no copy left, and no checkpoint brought them back"),
]


def rules():
    """Name and severity of each alert, as far as this needs to read YAML."""
    with open(os.path.join(ROOT, "deploy", "alerts.yml")) as f:
        return dict(re.findall(r"- alert: (\w+)\n.*?severity: (\w+)\}", f.read(), re.S))


def headings():
    with open(os.path.join(ROOT, "deploy", "README.md")) as f:
        return {line.lstrip("#").strip().lower() for line in f if line.startswith("#")}


def test(severity, name, changes, alert=None, quiet=None, at=60, labels=None, text=None):
    unknown = set(changes) - set(HEALTHY)
    assert not unknown, f"{name}: not in a healthy cluster: {unknown}"
    wanted = [{"eval_time": f"{at}m", "alertname": other} for other in severity if other != alert]
    if alert:
        wanted.append({"eval_time": f"{quiet}m", "alertname": alert})
        wanted.append({"eval_time": f"{at}m", "alertname": alert, "exp_alerts": [{
            "exp_labels": {"severity": severity[alert], **labels},
            "exp_annotations": {"summary": text, "runbook_url": RUNBOOK + alert.lower()}}]})
    series = [{"series": k, "values": v} for k, v in (HEALTHY | changes).items()]
    return {"interval": "1m", "name": name, "input_series": series, "alert_rule_test": wanted}


def main():
    severity = rules()
    missing = set(severity) - {fault[2] for fault in FAULTS}
    if missing:
        sys.exit(f"alerts.py: no fault for {', '.join(sorted(missing))}")
    unexplained = [alert for alert in severity if alert.lower() not in headings()]
    if unexplained:
        sys.exit(f"alerts.py: no heading in deploy/README.md for {', '.join(unexplained)}")
    tests = [test(severity, "nothing is wrong", {})]
    tests += [test(severity, *fault) for fault in FAULTS]
    with open(sys.argv[1], "w") as f:
        json.dump({"rule_files": [os.path.abspath(os.path.join(ROOT, "deploy", "alerts.yml"))],
                   "evaluation_interval": "1m", "tests": tests}, f)
    print(f"{len(severity)} alerts, {len(FAULTS)} faults")


main()
