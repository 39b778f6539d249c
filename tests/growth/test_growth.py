#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the arithmetic of the simulated growth: the numbers of messages, the fit, the order of
events, and what the plot and the tables are made of. The costs are those that are checked in."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import step  # noqa: E402
from costs import Case, Costs, Measured, fit  # noqa: E402
from simulate import VARIANTS, simulate  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BEFORE, ONE, TREE, TREE32, RANGES = VARIANTS


class Growth(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(HERE, "costs.txt"), encoding="ascii") as f:
            cls.measured = Measured(f)
        cls.costs = Costs(cls.measured)

    def run_one(self, n, variant, step_s=0.1, ranks=1, **more):
        return simulate(self.costs, n, 4, ranks, 1, step_s, variant, **more)

    def test_three_nodes(self):
        """README: 8 (n - 1) messages at the coordinator, and 4 (n - 1) + 4 at another node, of a
        step before any timer."""
        self.assertEqual([sum(c) for c in step.messages(
            3, 1, 0, "coordinator").values()], [4, 4, 2, 2, 2, 2])
        self.assertEqual(sum(map(sum, step.messages(3, 1, 0, "coordinator").values())), 8 * 2)
        self.assertEqual(sum(map(sum, step.messages(3, 1, 0, "other").values())), 4 * 2 + 4)
        self.assertEqual(step.writes(3, 0, "coordinator"), 3 * 2)

    def test_what_cores_sent(self):
        """Of every point that was measured, the real cores sent and received what the formulas say,
        op by op."""
        for case, ops in self.measured.core.items():
            want = step.messages(
    case.nodes, case.ranks, step.rounds(
        case.step_ms / 1000), case.role)
            self.assertEqual({op: (o.out, o.into) for op, o in ops.items()},
                             {op: tuple(c) for op, c in want.items()}, case)
            if case.packed == "once" and case.role == "coordinator":
                self.assertEqual(
    step.writes(
        case.nodes,
        step.rounds(
            case.step_ms /
            1000),
            case.role),
             self.measured.own[case].writes)

    def test_what_daemons_sent(self):
        for (n, role), ops in self.measured.real.items():
            want = step.messages(n, 1, 0, role)
            if self.measured.loop[n, role][1] < 190:
                for op in want:
                    self.assertAlmostEqual(ops[op][0] + ops[op][2],
                                           sum(want[op]), delta=0.05 * sum(want[op]) + 0.01)

    def test_timers(self):
        self.assertEqual([step.rounds(s) for s in (0.19, 0.2, 0.59, 0.6, 0.99,
                         1.0, 1.99, 2.0, 5.5)], [0, 1, 1, 2, 2, 3, 3, 4, 7])

    def test_simulated_messages(self):
        """One coordinator: the simulation counts what the formulas say, with and without timers."""
        for n in (3, 8, 40):
            for step_s in (0.1, 0.9):
                r = self.run_one(n, ONE, step_s)
                self.assertEqual(r.messages, sum(map(sum, step.messages(
                    n, 1, step.rounds(step_s), "coordinator").values())))
                self.assertEqual(r.messages_other, sum(
                    map(sum, step.messages(n, 1, step.rounds(step_s), "other").values())))

    def test_simulated_time(self):
        """The loop is as busy as the parts say, and a step is no shorter than one whose messages
        are free."""
        for n in (8, 64, 300):
            cpu = step.Cpu(self.costs, Case(n, 4, 1, 1, 0, "once", "coordinator"), 0)
            self.assertAlmostEqual(self.run_one(n, ONE).cpu_s * 1e9 / cpu.ns, 1, delta=0.15)
            self.assertLess(self.run_one(n, ONE, free=True).step_s, self.run_one(n, ONE).step_s)
        self.assertEqual(self.run_one(8, ONE), self.run_one(8, ONE))
        self.assertNotEqual(self.run_one(8, ONE), self.run_one(8, ONE, seed=2))

    def test_variants(self):
        """A tree or ranges take messages from a large coordinator. With few nodes a tree is one
        coordinator."""
        self.assertEqual(self.run_one(9, TREE), self.run_one(9, ONE))
        self.assertLess(self.run_one(9, ONE).cpu_s, self.run_one(9, BEFORE).cpu_s)
        big = {v: self.run_one(300, v) for v in VARIANTS}
        for v in (TREE, TREE32, RANGES):
            self.assertLess(big[v].messages, big[ONE].messages)
            self.assertLess(big[v].cpu_s, big[ONE].cpu_s)
        self.assertLess(big[TREE].bytes, big[ONE].bytes / 5)

    def test_fit(self):
        rows = [((1, n, n * n), 5 + 0.25 * n * n) for n in (1, 2, 4, 8, 16, 32)]
        for got, want in zip(fit(rows), (5, 0, 0.25)):
            self.assertAlmostEqual(got, want, delta=1e-3)
        self.assertEqual(fit([((1, 1), 0)]), None)
        self.assertTrue(all(f >= 0 for f in fit([((1, n), 10 - n) for n in range(1, 9)])))


if __name__ == "__main__":
    unittest.main()
