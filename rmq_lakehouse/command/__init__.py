"""Parts of ``jobs/export_delta.py``: its arguments and their values, exports of several stores, its reports."""
