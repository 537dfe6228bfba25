# For fingers that type `make`: everything is in dev.py, which needs no make.
.PHONY: demo test bench lint clean

demo test bench lint clean:
	python3 dev.py $@
