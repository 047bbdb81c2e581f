"""The promises of a database as SQL: each query selects (run, what is wrong) for one way to break one.

Written without the store's code, so that a mistake there isn't repeated here. Plain SQL that SQLite and PostgreSQL
share; texts are put together with ||.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.types import StopReason


def _listed(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_ENDINGS = _listed([reason.value for reason in StopReason])
_GRADED = _listed([reason.value for reason in StopReason if reason.ending.graded])

_FINAL = """WITH final AS (
    SELECT id, run_id, group_id, sample, stop_reason,
           row_number() OVER (PARTITION BY group_id, sample ORDER BY reissue DESC, attempt DESC) AS place
    FROM trajectories WHERE group_id IS NOT NULL),
done AS (
    SELECT * FROM groups
    WHERE state = 'complete' OR id IN (SELECT group_id FROM claims WHERE state <> 'released'))"""
"""Each sample's last attempt, and the groups whose samples are all due."""

_USED = """WITH used AS (
    SELECT r.run_id, r.step_id, r.end_turn, r.trajectory_id, t.group_id, g.run_id AS group_run
    FROM step_rows r
    JOIN steps s ON s.run_id = r.run_id AND s.id = r.step_id AND NOT s.abandoned
    JOIN trajectories t ON t.id = r.trajectory_id
    JOIN groups g ON g.id = t.group_id AND g.purpose = 'train')"""
"""The Rows of train groups that surviving steps trained on. (Demonstrations may be imitated many times.)"""

QUERIES = {
    "group_size": f"""{_FINAL}
        SELECT d.run_id, 'group ' || d.id || ' has ' || count(f.id) || ' samples of ' || d.size
        FROM done d LEFT JOIN final f ON f.group_id = d.id AND f.place = 1 AND f.sample >= 0 AND f.sample < d.size
        GROUP BY d.run_id, d.id, d.size HAVING count(f.id) <> d.size""",
    "sample_unfinished": f"""{_FINAL}
        SELECT d.run_id, 'group ' || d.id || ' is complete, but trajectory ' || f.id || ' has no ending'
        FROM done d JOIN final f ON f.group_id = d.id AND f.place = 1 WHERE f.stop_reason IS NULL""",
    "sample_ungraded": f"""{_FINAL}
        SELECT d.run_id, 'group ' || d.id || ' is complete, but trajectory ' || f.id || ' has no grade'
        FROM done d JOIN final f ON f.group_id = d.id AND f.place = 1
        WHERE f.stop_reason IN ({_GRADED}) AND f.id NOT IN (SELECT trajectory_id FROM grades)""",
    "left_running": """
        SELECT t.run_id, 'trajectory ' || t.id || ' has no ending, but its group is ' || g.state
        FROM trajectories t JOIN groups g ON g.id = t.group_id
        WHERE t.stop_reason IS NULL AND g.state IN ('archived', 'dropped', 'planned')""",
    "unknown_ending": f"""
        SELECT run_id, 'trajectory ' || id || ' ended in ' || stop_reason
        FROM trajectories WHERE stop_reason NOT IN ({_ENDINGS}) OR (stop_reason IS NOT NULL AND finished_at IS NULL)""",
    "trained_twice": f"""{_USED}
        SELECT run_id, 'trajectory ' || trajectory_id || ', turn ' || end_turn || ' was trained on ' || count(*)
               || ' times, in steps ' || min(step_id) || ' to ' || max(step_id)
        FROM used GROUP BY run_id, trajectory_id, end_turn HAVING count(*) > 1""",
    "group_in_two_steps": f"""{_USED}
        SELECT run_id, 'group ' || group_id || ' was used in steps ' || min(step_id) || ' and ' || max(step_id)
        FROM used GROUP BY run_id, group_id HAVING count(DISTINCT step_id) > 1""",
    "torn_group": f"""{_FINAL}
        SELECT c.run_id, 'step ' || c.step_id || ' left trajectory ' || f.id || ' of group ' || c.group_id || ' out'
        FROM claims c
        JOIN steps s ON s.run_id = c.run_id AND s.id = c.step_id AND NOT s.abandoned AND s.state = 'recorded'
        JOIN final f ON f.group_id = c.group_id AND f.place = 1
        WHERE c.state = 'consumed'
        AND EXISTS (SELECT 1 FROM turns u WHERE u.trajectory_id = f.id AND u.trained AND length(u.sampled_ids) > 0)
        AND NOT EXISTS (SELECT 1 FROM step_rows r
                        WHERE r.run_id = c.run_id AND r.step_id = c.step_id AND r.trajectory_id = f.id)""",
    "row_without_claim": f"""{_USED}
        SELECT DISTINCT run_id, 'step ' || step_id || ' used group ' || group_id || ' without a consumed claim'
        FROM used u WHERE NOT EXISTS (
            SELECT 1 FROM claims c WHERE c.run_id = u.run_id AND c.step_id = u.step_id AND c.group_id = u.group_id
            AND c.state = 'consumed')""",
    "claim_and_step_differ": """
        SELECT c.run_id, 'the claim of group ' || c.group_id || ' is ' || c.state || ', but step ' || c.step_id
               || ' is ' || CASE WHEN s.id IS NULL THEN 'not there' WHEN s.abandoned THEN 'abandoned' ELSE s.state END
        FROM claims c LEFT JOIN steps s ON s.run_id = c.run_id AND s.id = c.step_id
        WHERE s.id IS NULL OR (s.abandoned AND c.state <> 'released')
        OR (s.state = 'recorded' AND c.state = 'claimed') OR (s.state = 'begun' AND c.state = 'consumed')""",
    "sampled_by_no_surviving_version": f"""{_USED}
        SELECT DISTINCT u.run_id, 'step ' || u.step_id || ' used trajectory ' || u.trajectory_id
               || ', sampled by version ' || c.version
               || CASE WHEN v.id IS NULL THEN ', which is not there' ELSE ', which was abandoned' END
        FROM used u JOIN engine_calls c ON c.trajectory_id = u.trajectory_id
        LEFT JOIN versions v ON v.run_id = u.run_id AND v.id = c.version
        WHERE u.group_run = u.run_id AND (v.id IS NULL OR v.abandoned)""",
    "turns_missing": """
        SELECT t.run_id, 'trajectory ' || t.id || ' has ' || count(u.turn) || ' turns of ' || t.num_turns
        FROM trajectories t LEFT JOIN turns u ON u.trajectory_id = t.id
        GROUP BY t.run_id, t.id, t.num_turns
        HAVING count(u.turn) <> t.num_turns OR coalesce(max(u.turn) + 1, 0) <> t.num_turns""",
    "calls_do_not_cover": """
        SELECT t.run_id, 'trajectory ' || t.id || ', turn ' || u.turn || ' has calls over '
               || coalesce(sum(c.span_end - c.span_start), 0) || ' of ' || length(u.logprobs) / 4 || ' sampled ids'
        FROM turns u JOIN trajectories t ON t.id = u.trajectory_id
        LEFT JOIN engine_calls c ON c.trajectory_id = u.trajectory_id AND c.turn = u.turn
        WHERE u.sampler = 'engine' GROUP BY t.run_id, t.id, u.turn, u.logprobs
        HAVING coalesce(sum(c.span_end - c.span_start), 0) <> length(u.logprobs) / 4
        OR coalesce(max(c.span_end), 0) <> length(u.logprobs) / 4""",
    "row_without_turn": """
        SELECT r.run_id, 'step ' || r.step_id || ' used trajectory ' || r.trajectory_id || ', turn ' || r.end_turn
               || ', which is not there'
        FROM step_rows r LEFT JOIN turns u ON u.trajectory_id = r.trajectory_id AND u.turn = r.end_turn
        WHERE u.turn IS NULL""",
    "row_of_another_grade": """
        SELECT r.run_id, 'step ' || r.step_id || ' used grade ' || r.grade_id || ' for trajectory ' || r.trajectory_id
        FROM step_rows r LEFT JOIN grades g ON g.id = r.grade_id
        WHERE r.grade_id IS NOT NULL AND (g.id IS NULL OR g.trajectory_id <> r.trajectory_id)""",
    "row_of_an_earlier_attempt": f"""{_FINAL}
        SELECT r.run_id, 'step ' || r.step_id || ' used trajectory ' || r.trajectory_id || ', which was tried again'
        FROM step_rows r
        JOIN steps s ON s.run_id = r.run_id AND s.id = r.step_id AND NOT s.abandoned
        JOIN final f ON f.id = r.trajectory_id AND f.place > 1""",
}
"""What holds at any instant, by the violation's name."""

OF_COMPLETED = {
    "left_over": """
        SELECT g.run_id, 'the run is completed, but group ' || g.id || ' is ' || g.state
        FROM groups g JOIN runs r ON r.id = g.run_id AND r.status = 'completed'
        WHERE g.state IN ('leased', 'planned')
        UNION ALL
        SELECT t.run_id, 'the run is completed, but trajectory ' || t.id || ' has no ending'
        FROM trajectories t JOIN runs r ON r.id = t.run_id AND r.status = 'completed'
        WHERE t.stop_reason IS NULL""",
}
"""What holds once a run has reached its end: nothing is left for a dead worker."""
