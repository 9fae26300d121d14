"""The embedded demonstration: sample prompts through, invoice out."""
