"""Why a test failed: evidence from both hosts, the diagnosis, sections of the report, artifacts."""
