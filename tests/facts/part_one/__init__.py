"""What the pages of Part I say, a file each: ``FACTS`` with everything that is a result, and ``GIVEN`` with what is none.

A page ``a-page.ipynb`` has ``a_page.py``. What the page computes live is a function of its variables, as in
``("falls to {:.1f}", lambda page: page["ratio"])``; such numbers are few, and far from where they would be rounded to
another. ``GIVEN`` has made-up examples, quiz numbers and settings, word for word.
"""
