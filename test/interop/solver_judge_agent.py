"""Two solvers and a judge in a process of their own, told apart by the metadata of their calls."""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from openai import OpenAI

OPENAI = OpenAI(base_url="http://127.0.0.1", api_key="none")


def attempt(run):
    client = OPENAI.with_options(base_url=run["base_url"], api_key=run["api_key"])
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


class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        report = attempt(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(report).encode())

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


Server(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
