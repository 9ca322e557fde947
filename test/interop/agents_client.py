"""Drives the chat APIs with the official Python clients. Prints one JSON object."""

import json
import sys

import anthropic
import openai

ROOT, MODEL = sys.argv[1:3]
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
ASK = {"role": "user", "content": "add 1 and 2"}


def add(arguments):
    return str(int(arguments["a"] + arguments["b"]))


def chat(client):
    """A tool loop: a stream, then a whole reply."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    texts, calls = [], {}
    for chunk in client.chat.completions.create(model=MODEL, messages=[ASK], tools=tools, stream=True):
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            for call in choice.delta.tool_calls or []:
                calls[call.index] = call
    call = calls[0]
    reply = {
        "role": "assistant",
        "content": "".join(texts),
        "tool_calls": [{"id": call.id, "type": "function", "function": call.function.model_dump()}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": add(json.loads(call.function.arguments))}
    last = client.chat.completions.create(
        model=MODEL, messages=[ASK, reply, result], tools=tools, logprobs=True, extra_body={"return_token_ids": True}
    )
    choice = last.choices[0]
    return {
        "pieces": len([text for text in texts if text]),
        "text": choice.message.content,
        "logprobs": len(choice.logprobs.content),
        "tokens": len(choice.token_ids),
    }


def responses(client):
    tools = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
    with client.responses.stream(model=MODEL, input=[ASK], tools=tools) as stream:
        events = [event.type for event in stream]
        first = stream.get_final_response()
    call = next(item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": add(json.loads(call.arguments))}
    last = client.responses.create(model=MODEL, previous_response_id=first.id, input=[result], tools=tools)
    return {"deltas": events.count("response.output_text.delta"), "last": events[-1], "text": last.output_text}


def messages(client):
    tools = [{"name": "add", "input_schema": SCHEMA}]
    common = {"model": MODEL, "max_tokens": 200, "tools": tools}
    with client.messages.stream(messages=[ASK], **common) as stream:
        pieces = list(stream.text_stream)
        first = stream.get_final_message()
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": add(call.input)}
    turns = [ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = client.messages.create(messages=turns, **common)
    counted = client.messages.count_tokens(model=MODEL, messages=[ASK], tools=tools)
    return {
        "pieces": len(pieces),
        "types": [block.type for block in first.content],
        "stop_reason": first.stop_reason,
        "text": last.content[-1].text,
        "counted": counted.input_tokens == first.usage.input_tokens,
    }


def errors(openai_client, anthropic_client):
    found = []
    try:
        openai_client.chat.completions.create(model=MODEL, messages=[ASK], temperature=-1)
    except openai.BadRequestError as error:
        found.append(error.param)
    try:
        anthropic_client.messages.create(model=MODEL, max_tokens=0, messages=[ASK])
    except anthropic.BadRequestError as error:
        found.append(error.body["error"]["type"])
    return found


CLIENTS = {
    "openai": openai.OpenAI(base_url=f"{ROOT}/v1", api_key="-", max_retries=0),
    "anthropic": anthropic.Anthropic(base_url=ROOT, api_key="-", max_retries=0),
}
print(
    json.dumps(
        {
            "versions": [openai.__version__, anthropic.__version__],
            "chat": chat(CLIENTS["openai"]),
            "responses": responses(CLIENTS["openai"]),
            "messages": messages(CLIENTS["anthropic"]),
            "errors": errors(CLIENTS["openai"], CLIENTS["anthropic"]),
            "models": [model.id for model in CLIENTS["openai"].models.list()],
        }
    )
)
