"""What the command prints."""

from rewriter.report.summary import print_explanations, print_summary

__all__ = ["print_explanations", "print_summary"]
