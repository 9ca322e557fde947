"""The HTTP side of an agent: each POST of a run is one attempt, and the answer is its report."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from openai import OpenAI

# One client for all attempts: each of them uses its connections with an address and a key of its own.
OPENAI = OpenAI(base_url="http://127.0.0.1", api_key="none")


def client_of(run):
    """The OpenAI client of one attempt."""
    return OPENAI.with_options(base_url=run["base_url"], api_key=run["api_key"])


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


def serve(attempt):
    """Answers each POST with what `attempt` returns for its body. Arguments: the port, and the address to listen on."""

    class Agent(BaseHTTPRequestHandler):
        def do_POST(self):
            report = attempt(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(report).encode())

        def log_message(self, *_):
            pass

    # An agent in a container listens on 0.0.0.0.
    host = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    Server((host, int(sys.argv[1])), Agent).serve_forever()
