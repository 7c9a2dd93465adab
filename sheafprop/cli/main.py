def main() -> int:
    raise SystemExit("under construction")
