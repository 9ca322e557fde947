"""Two solvers and a judge in a process of their own, told apart by the metadata of their calls."""

import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples" / "remote_agent"))
from agent_server import client_of, serve  # noqa: E402


def attempt(run):
    client = client_of(run)
    problem = run["task"]["instruction"]

    def ask(prompt, **metadata):
        reply = client.completions.create(model=run["model"], prompt=prompt, extra_body={"metadata": metadata})
        return reply.choices[0].text.strip()

    answers = [ask(problem, role="solver", part=i) for i in range(2)]
    rewards = [float(answer == run["task"]["metadata"]["answer"].strip()) for answer in answers]
    numbers = re.findall(r"\d+", ask(f"{problem}{answers[0]}|{answers[1]}?", role="judge"))
    choice = int(numbers[-1]) if numbers else 0
    judged = rewards[choice - 1] if choice in (1, 2) else 0.0
    return {
        "trajectory_rewards": {"solver/0": rewards[0], "solver/1": rewards[1], "judge": judged},
        "is_correct": judged > 0,
        "metrics": {"solver_acc": sum(rewards) / 2, "judge_acc": judged},
    }


if __name__ == "__main__":
    serve(attempt)
