"""An agent in a process of its own: guesses a hidden digit, asking the run's gateway with the official OpenAI client.

    pip install openai
    python examples/remote_agent/agent.py 8100
"""

from agent_server import client_of, serve

TURNS = 4
DIGITS = "0123456789abcdef"


def attempt(run):
    """Plays one game: each wrong guess is answered with < or >. The reward is 1 for a game that is won."""
    client = client_of(run)
    hidden = run["task"]["metadata"]["answer"]
    messages = [{"role": "user", "content": "?"}]
    for turn in range(TURNS):
        choice = client.chat.completions.create(model=run["model"], messages=messages).choices[0]
        guess = choice.message.content or ""
        if guess == hidden:
            return {"reward": 1, "metrics": {"num_turns": turn + 1}}
        if choice.finish_reason == "length":
            return {"reward": 0, "metrics": {"num_turns": turn + 1}, "termination_reason": "max_response_length_exceeded"}
        hint = "?" if len(guess) != 1 or guess not in DIGITS else "<" if DIGITS.index(hidden) < DIGITS.index(guess) else ">"
        messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]
    return {"reward": 0, "metrics": {"num_turns": TURNS}, "termination_reason": "max_turns_exceeded"}


if __name__ == "__main__":
    serve(attempt)
