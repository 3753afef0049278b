"""A TCP proxy with network faults: it holds, delays and breaks connections. One thread, any number of connections."""

import asyncio
import random
import threading
import time


class Proxy:
    """Forwards connections to `target` ("HOST:PORT"); `address` is where it listens. "up" is the direction to the
    target."""

    def __init__(self, target, seed=0):
        self.host, port = target.rsplit(":", 1)
        self.port = int(port)
        self.random = random.Random(seed)
        self.delay = (0.0, 0.0)  # Least and most seconds of delay of each piece of data; order is kept, as in TCP.
        self.loss, self.retransmission = 0.0, 0.2  # Share of pieces that arrive one retransmission later.
        self.lost = 0
        self.accepted = 0
        self._held = {"up": False, "down": False}
        self._refuses = False
        self._pairs = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._changed = self._call(self._make_event())
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- Faults ---

    def hold(self, *directions):
        """Holds all data in these directions without closing connections, like an unplugged cable. None: forwards
        again."""
        self._call(self._set(held={d: d in directions for d in ("up", "down")}))

    def cut(self, refuse=True):
        """Breaks every connection, and refuses new ones while `refuse`."""
        self._call(self._set(refuses=refuse, break_all=True))

    def mend(self):
        self._call(self._set(held={"up": False, "down": False}, refuses=False))

    def close(self):
        if self._thread.is_alive():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # --- On the proxy's thread ---

    def _call(self, what):
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    @staticmethod
    async def _make_event():
        return asyncio.Condition()

    async def _set(self, held=None, refuses=None, break_all=False):
        self._held = held if held is not None else self._held
        self._refuses = refuses if refuses is not None else self._refuses
        if break_all:
            for writer in list(self._pairs):
                writer.transport.abort()
        async with self._changed:
            self._changed.notify_all()

    async def _end(self):
        self._server.close()
        await self._set(refuses=True, break_all=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader, writer):
        if self._refuses:
            writer.transport.abort()
            return
        self.accepted += 1
        try:
            there, back = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.transport.abort()
            return
        self._pairs |= {writer, back}
        await asyncio.gather(self._pump(reader, back, "up"), self._pump(there, writer, "down"))
        self._pairs -= {writer, back}

    async def _pump(self, reader, writer, direction):
        """Reads at once and sends in order, each piece at its time."""
        pieces = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(pieces, writer, direction))
        try:
            while data := await reader.read(1 << 16):
                late = self.random.uniform(*self.delay)
                if self.random.random() < self.loss:
                    late += self.retransmission
                    self.lost += 1
                pieces.put_nowait((time.monotonic() + late, data))
        except OSError:
            pass
        pieces.put_nowait((0, None))
        await sender

    async def _send(self, pieces, writer, direction):
        try:
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._held[direction] or writer.transport.is_closing())
                if data is None or writer.transport.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()
