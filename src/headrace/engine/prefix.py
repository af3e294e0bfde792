"""Which pages already hold the keys and values of a prompt's beginning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.engine.pages import PagePool


class CacheScope(NamedTuple):
    """What shapes keys and values besides the tokens before them. Pages are shared within one scope only.

    Attributes:
        salt: the request's `cache_salt`; requests with another one, or none, share nothing with it.
        adapter: name of the adapter that the weights are combined with.
        rope_length: length that the rotation of every token depends on; 0 where it depends on the position alone.
    """

    salt: str | None = None
    adapter: str | None = None
    rope_length: int = 0


_Key = tuple[CacheScope | None, tuple[int, ...]]


@dataclass(eq=False)
class PrefixNode:
    """A full page, known by its tokens and all those before it. The root stands for no tokens.

    Attributes:
        parent: the page before; the root for the first.
        key: the scope, in a first page, and the page's tokens.
        page: its number; -1 for the root.
        children: the pages that are known to follow.
        alive: whether it can still be found; what is added after one that cannot is not found either.
    """

    parent: PrefixNode | None
    key: _Key
    page: int
    children: dict[_Key, PrefixNode] = field(default_factory=dict)
    alive: bool = True


class PrefixCache:
    """A tree of full pages. Whole token ids are compared on the way down, so that nothing else can be taken for them.

    A page can be shared from the moment that the step which fills it is scheduled, also with other rows of that step:
    attention writes all keys and values of a step before it reads any. Pages that nobody uses stay in the pool until
    it needs them; those that follow an evicted page are forgotten with it.

    Attributes:
        enabled: if False, nothing is ever found or added.
        num_queried_tokens, num_hit_tokens: tokens of the requests that were looked up, and of the pages found.
    """

    def __init__(self, pool: PagePool, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._pool = pool
        self._nodes: dict[int, PrefixNode] = {}  # by page
        self._root = _new_root()
        pool.on_evict = lambda page: self._remove(self._nodes[page])

    def __len__(self) -> int:
        """Pages that can be found."""
        return len(self._nodes)

    @property
    def root(self) -> PrefixNode:
        """Where every sequence begins."""
        return self._root

    def match(self, scope: CacheScope, token_ids: Sequence[int]) -> list[PrefixNode]:
        """The pages of the longest known beginning, which is always shorter than the whole: there must be a token left
        whose logits are computed. They are not referenced yet."""
        size, node, found = self._pool.page_size, self._root, []
        for start in range(0, len(token_ids) - size if self.enabled else 0, size):
            child = node.children.get(self._key(node, scope, token_ids[start : start + size]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def count(self, num_tokens: int, num_hit_tokens: int) -> None:
        """Counts a request that was admitted with so many of its tokens found."""
        self.num_queried_tokens += num_tokens
        self.num_hit_tokens += num_hit_tokens

    def add(self, node: PrefixNode, scope: CacheScope, token_ids: Sequence[int], page: int) -> PrefixNode:
        """Makes a page in use findable after `node`; returns its node, or the one that already has these tokens."""
        if not self.enabled or not node.alive:
            return node
        key = self._key(node, scope, token_ids)
        child = node.children.get(key)
        if child is None:
            child = node.children[key] = self._nodes[page] = PrefixNode(node, key, page)
            self._pool.keep(page)
        return child

    def forget(self, pages: Iterable[int]) -> None:
        """Makes pages unfindable, with all that follows them; whoever uses them goes on."""
        for page in pages:
            if page in self._nodes:
                self._remove(self._nodes[page])

    def reset(self) -> None:
        """Forgets every page. Running sequences go on with theirs, but what they add is not found."""
        self.forget([child.page for child in self._root.children.values()])
        self._root.alive = False
        self._root = _new_root()

    def check(self) -> None:
        """AssertionError unless the tree and the pool agree. For tests."""
        found = list(_below(self._root))
        assert {node.page: node for node in found} == self._nodes
        assert len(found) == len(self._nodes), "a page stands for two beginnings"
        for node in found:
            assert node.alive
            assert node.parent is not None
            assert node.parent.children[node.key] is node
            assert len(node.key[1]) == self._pool.page_size

    def _key(self, parent: PrefixNode, scope: CacheScope, token_ids: Sequence[int]) -> _Key:
        return (scope if parent is self._root else None, tuple(token_ids))

    def _remove(self, node: PrefixNode) -> None:
        assert node.parent is not None
        del node.parent.children[node.key]
        for gone in (node, *_below(node)):
            gone.alive = False
            del self._nodes[gone.page]
            self._pool.discard(gone.page)


def _new_root() -> PrefixNode:
    return PrefixNode(None, (None, ()), -1)


def _below(node: PrefixNode) -> Iterator[PrefixNode]:
    """The nodes after one, without recursion: a long prompt is a deep tree."""
    todo = list(node.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()
