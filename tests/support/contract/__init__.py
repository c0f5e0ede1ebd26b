"""The contract of the JetStream API as data, and a checker for it.

shapes.txt, answers.txt and events.txt list the fields of every answer, advisory and metric with
their types; checker.py compares a body with them."""
