"""A backend that costs as little as possible: canned chat answers over bare asyncio, streamed or whole.

Run as ``python -m benchmarks.scripted_backend PORT``; used by the benchmarks only.
"""

import asyncio
import sys
from typing import cast

import uvloop

CHUNKS = 20
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1764547200,"model":"scripted",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"' + b"word " * 20 + b'"},'
    b'"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":50,"completion_tokens":20,"total_tokens":70}}'
)
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    + str(len(ANSWER)).encode()
    + b"\r\n\r\n"
    + ANSWER
)


def _chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


_HEAD = (
    b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764547200,"model":"scripted",'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_PIECE = _chunk(_HEAD + b'"choices":[{"index":0,"delta":{"content":"word "}}]}')
STREAM_END = (
    _chunk(_HEAD + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    + _chunk(
        _HEAD
        + b'"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":20,"total_tokens":70}}'
    )
    + _chunk(b"[DONE]")
    + b"0\r\n\r\n"
)


class ScriptedBackend(asyncio.Protocol):
    """Answers every request; knows just enough HTTP for the benchmark's clients."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self.transport = cast("asyncio.Transport", transport)
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        """Answer each complete request in the buffer."""
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            if b'"stream":true' in body:
                self.transport.write(STREAM_HEAD)
                for _ in range(CHUNKS):
                    self.transport.write(STREAM_PIECE)
                self.transport.write(STREAM_END)
            else:
                self.transport.write(WHOLE)


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(ScriptedBackend, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
