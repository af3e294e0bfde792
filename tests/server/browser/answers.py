"""What the scripted engine says."""

from __future__ import annotations

import time
from typing import Any

SHORT = "The *wheel* turns."
LONG = " ".join(f"word{i}" for i in range(60))
MARKDOWN = """# Mills

The **headrace** leads to `a < b` and *on*.

1. first
   - inner
2. second

```python
if a < b and *c*:
    print("<b>")
```

3 * 4 * 5 and snake_case_name, 2 ** 3"""
ATTACK = """<img src=x onerror="window.hit=1"><script>window.hit=1</script>
[link](javascript:window.hit=1) <a href="javascript:window.hit=1">a</a>

- <svg onload="window.hit=1">**<iframe srcdoc="<script>parent.hit=1</script>">**

`<b onclick=window.hit=1>`

```<img/src=x/onerror=window.hit=1>
</code></pre><script>window.hit=1</script>
```
"""
WIDE = f"{'wide' * 60}\n\n```\n{'code ' * 60}\n```\n\n- {'item' * 50}\n\n`{'inline' * 40}`"
ANSWERS = {"long": LONG, "markdown": MARKDOWN, "attack": ATTACK, "wide": WIDE}
ERROR = {
    "error": {"message": "what the server says", "type": "x", "param": None, "code": None}
}  # a failure in OpenAI's form


class Slowly(list[int]):
    """Tokens of which each takes 10 ms."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.01)
        return super().__getitem__(index)
