"""What is masked before it is recorded: known values in every common form, and what looks like a secret.

Best effort: it may miss what it does not know, and it never changes what a tool returns. No text makes it raise, and
its time grows in line with the text.
"""

from heddle.redaction.redactor import RedactedStream, Redactor
from heddle.redaction.sieve import REDACTED

__all__ = ["REDACTED", "RedactedStream", "Redactor"]
