"""The master: decides who does what, and keeps the job alive."""
