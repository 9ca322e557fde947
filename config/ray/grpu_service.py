"""Asks the service of a grpu run, at GRPU_URL with the key GRPU_TOKEN, from the workers of a cluster."""

import asyncio
import os

import aiohttp

TRIES, SECONDS = 5, 60


async def call(method, path, body=None):
    """
    The JSON reply of a request. Connection errors and 5xx are tried again after 1, 2, 4 and 8 seconds, which is safe because
    the service keeps the reply of each id. A service that has too much to do (503) is asked until it has time.
    """
    url, tries = os.environ["GRPU_URL"].rstrip("/") + path, 0
    headers = {"Authorization": "Bearer " + os.environ["GRPU_TOKEN"]}
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        while True:
            wait = 2**tries
            try:
                async with session.request(method, url, json=body) as reply:
                    if reply.status < 400:
                        return await reply.json()
                    why = f"status {reply.status}: {(await reply.text())[:500]}"
                    tries = TRIES if reply.status < 500 else tries + (reply.status != 503)
                    wait = float(reply.headers.get("Retry-After", wait))
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                tries, why = tries + 1, f"{type(error).__name__}: {error}"
            if tries >= TRIES:
                raise RuntimeError(f"Cannot ask the service at {url}: {why}")
            await asyncio.sleep(wait)
