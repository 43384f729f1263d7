"""A real browser looks at goldstick's pages: `make browser`.

`install` unpacks a Chromium and `look` opens pages in it, both in an environment of their own, build/browser. `browse`
asks `look` and judges what it saw, `pages` makes the pages, and ``python -m tools.browser`` does all of it.
"""
