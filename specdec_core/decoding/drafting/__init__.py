"""Asking a drafter for a draft: the request, the record of q, and the checks of a proposal."""
