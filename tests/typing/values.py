"""How a host says what is allowed."""

import heddle

heddle.Limits(wall_seconds=2.5, stdout_bytes=1024)
heddle.Limits(wall_secs=2)  # E: mypy[call-arg] pyright[reportCallIssue]
heddle.Limits(2)  # E: mypy[call-arg] pyright[reportCallIssue]
heddle.Limits(wall_seconds="2")  # E: mypy[arg-type] pyright[reportArgumentType]
heddle.DEFAULT_LIMITS.wall_seconds = 3  # E: mypy[misc] pyright[reportAttributeAccessIssue]

heddle.Mount("data", "input", mode="rw")
heddle.Mount("data", mode="wr")  # E: mypy[arg-type] pyright[reportArgumentType]
heddle.Mount.parse("data:input:ro")
heddle.Mount.from_files({"a.txt": b"a"}, dest="notes")
heddle.Mount.from_files({"a.txt": "a"}, dest="notes")  # E: mypy[dict-item] pyright[reportArgumentType]

heddle.Sandbox(network="none", read=["data"])
heddle.Sandbox()  # E: mypy[call-arg] pyright[reportCallIssue]
heddle.Sandbox(network="off")  # E: mypy[arg-type] pyright[reportArgumentType]

heddle.Environment(allow=["HOME"], values={"LANG": "C"})
heddle.Environment(values={"LANG": 1})  # E: mypy[dict-item] pyright[reportArgumentType]

heddle.Runner([], sandbox="bubblewrap")  # E: mypy[arg-type] pyright[reportArgumentType]
heddle.Runner([], limit=heddle.Limits())  # E: mypy[call-arg] pyright[reportCallIssue]
heddle.blocking.Runner([], limit=heddle.Limits())  # E: mypy[call-arg] pyright[reportCallIssue]
heddle.aio.Runner([], limits=30)  # E: mypy[arg-type] pyright[reportArgumentType]

print(heddle.Runer)  # E: mypy[attr-defined] pyright[reportAttributeAccessIssue]
