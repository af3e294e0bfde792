"""Server-sent events, as WHATWG defines them."""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class EventParser:
    """From bytes, cut anywhere, to the data of events.

    Lines end with LF, CRLF or CR; comments, event names and ids are passed over; data on several lines is one text.
    """

    def __init__(self) -> None:
        self._rest = b""  # of a line whose end has not come
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._after_cr = False  # the next byte may be the second half of a CRLF
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of all events that end here. What follows the last end of a stream is no event and is dropped."""
        events: list[bytes] = []
        *lines, self._rest = (self._rest + self._with_lf(data)).split(b"\n")
        for line in lines:
            if self._at_start:
                line, self._at_start = line.removeprefix(_BOM), False
            if not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events

    def _with_lf(self, data: bytes) -> bytes:
        """The same with LF at the end of each line."""
        if self._after_cr and data:
            data, self._after_cr = data.removeprefix(b"\n"), False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data
