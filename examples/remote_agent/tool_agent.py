"""The game of examples/tool_game in a process of its own: the model guesses by calling a tool.

    pip install openai
    python examples/remote_agent/tool_agent.py 8100
"""

import json

from agent_server import client_of, serve

TURNS = 4
DIGITS = "0123456789abcdef"
DIGIT = {"type": "object", "properties": {"digit": {"type": "string"}}, "required": ["digit"]}
TOOLS = [{"type": "function", "function": {"name": "guess", "description": "Compares a digit with the hidden one.", "parameters": DIGIT}}]


def hint(guess, hidden):
    """What the tool answers."""
    if len(guess) != 1 or guess not in DIGITS:
        return "?"
    return "<" if DIGITS.index(hidden) < DIGITS.index(guess) else ">"


def attempt(run):
    """Plays one game. The reward is 1 for a game that is won."""
    client = client_of(run)
    hidden = run["task"]["metadata"]["answer"]
    messages = [{"role": "user", "content": "?"}]
    for turn in range(TURNS):
        message = client.chat.completions.create(model=run["model"], messages=messages, tools=TOOLS).choices[0].message
        if not message.tool_calls:
            return {"reward": 0, "metrics": {"num_turns": turn + 1}}
        call = message.tool_calls[0]
        guess = str(json.loads(call.function.arguments).get("digit"))
        if guess == hidden:
            return {"reward": 1, "metrics": {"num_turns": turn + 1}}
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": hint(guess, hidden)}]
    return {"reward": 0, "metrics": {"num_turns": TURNS}}


if __name__ == "__main__":
    serve(attempt)
