"""Writers with a watermark, like the Spark sink: clients, and the check of what they wrote."""
