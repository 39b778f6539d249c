#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dashboard.py FILE: writes the expressions of deploy/grafana.json as rules that promtool reads.

Grafana's variables become values. The dashboard itself has to be whole: health first, no two panels
in one place, and every variable that an expression uses.
"""
import json
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VALUES = {"$__rate_interval": "1m", "$model": ".*", "$node": ".*"}
FIRST = ["Nodes up", "Nodes that are ill", "Models by state", "Steps per second",
         "Newest checkpoint", "Last rollback"]


def places(panel):
    at = panel["gridPos"]
    return {(x, y) for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])}


def main():
    with open(os.path.join(ROOT, "deploy", "grafana.json")) as f:
        board = json.load(f)
    panels = board["panels"]
    variables = {"$" + v["name"] for v in board["templating"]["list"]}
    wrong = []
    if [p["title"] for p in panels if p["type"] == "stat"] != FIRST or panels[1]["type"] != "stat":
        wrong.append(f"the figures of health do not come first: {', '.join(FIRST)}")
    if len({p["id"] for p in panels}) < len(panels):
        wrong.append("two panels have one id")
    taken = {}
    for panel in panels:
        for place in places(panel):
            if place in taken:
                wrong.append(f"{panel['title']} lies on {taken[place]}")
                break
            taken[place] = panel["title"]
        if max(x for x, _ in places(panel)) >= 24:
            wrong.append(f"{panel['title']} does not fit into the width")
    rules = []
    for panel in panels:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for variable in re.findall(r"\$\w+", expr):
                if variable not in VALUES or (variable not in variables and "__" not in variable):
                    wrong.append(f"{panel['title']}: there is no {variable}")
                expr = expr.replace(variable, VALUES.get(variable, ""))
            rules.append({"record": f"panel:{len(rules)}", "expr": expr})
    if wrong:
        sys.exit("\n".join(f"deploy/grafana.json: {text}" for text in wrong))
    with open(sys.argv[1], "w") as f:
        json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, f)
    print(f"{len(rules)} expressions of the dashboard")


main()
